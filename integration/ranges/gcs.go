package ranges

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/rangeread"
)

// GCS reads an object by the client of Google, over HTTP and over gRPC.
func GCS(object *storage.ObjectHandle) rangeread.Fetch {
	object = object.ReadCompressed(true) // ranges are those of the bytes that are stored
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		version := object
		if r.Match != "" {
			generation, err := strconv.ParseInt(r.Match, 10, 64)
			if err != nil {
				return nil, rangeread.Info{}, err
			}
			version = object.Generation(generation)
		}
		body, err := version.NewRangeReader(ctx, r.Offset, r.Length)
		if failed := (*googleapi.Error)(nil); errors.As(err, &failed) && failed.Code == http.StatusRequestedRangeNotSatisfiable {
			return refused(r, failed.Code, failed.Header.Get("Content-Range"), err)
		} else if status.Code(err) == codes.OutOfRange {
			return nil, rangeread.Info{}, io.EOF
		} else if r.Match != "" && errors.Is(err, storage.ErrObjectNotExist) { // that generation is not there any more
			return nil, rangeread.Info{}, fmt.Errorf("%w: %w", rangeread.ErrChanged, err)
		} else if err == io.EOF { // over gRPC: an answer without a message, which says nothing of where the object ends
			return nil, rangeread.Info{}, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, rangeread.Info{}, err
		}
		a := body.Attrs
		return body, rangeread.Info{Offset: a.StartOffset, Length: body.Remain(), Size: a.Size, Tag: strconv.FormatInt(a.Generation, 10)}, nil
	}
}
