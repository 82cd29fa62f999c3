package ranges

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/minio/minio-go/v7"

	"github.com/gohedge/hedge/rangeread"
)

// Minio reads an object by minio-go. The client's own GetObject asks for more than one range: Core's asks once.
func Minio(client *minio.Client, bucket, key string) rangeread.Fetch {
	core := minio.Core{Client: client}
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		var o minio.GetObjectOptions
		o.Set("Range", header(r)) // SetRange(0, 0) is the first byte, and there is no SetRange from 0 to the end
		if r.Match != "" {
			_ = o.SetMatchETag(r.Match) // refuses only an empty one
		}
		body, object, headers, err := core.GetObject(ctx, bucket, key, o)
		if err != nil {
			failed, size := minio.ToErrorResponse(err), ""
			if failed.StatusCode == http.StatusRequestedRangeNotSatisfiable { // its Content-Range is not to be had
				now, failed := core.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
				if failed != nil {
					return nil, rangeread.Info{}, failed
				}
				size = strconv.FormatInt(now.Size, 10)
			}
			return refused(r, failed.StatusCode, size, err)
		}
		return answer(r, body, false, headers.Get("Content-Range"), object.Size, object.ETag)
	}
}
