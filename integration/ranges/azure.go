package ranges

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"

	"github.com/gohedge/hedge/rangeread"
)

// Azure reads a blob by the SDK of Azure.
func Azure(client *azblob.Client, container, name string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		o := &azblob.DownloadStreamOptions{Range: azblob.HTTPRange{Offset: r.Offset, Count: max(r.Length, blob.CountToEnd)}}
		if r.Match != "" {
			tag := azcore.ETag(r.Match)
			o.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &tag}}
		}
		var raw *http.Response
		resp, err := client.DownloadStream(policy.WithCaptureResponse(ctx, &raw), container, name, o)
		if failed := (*azcore.ResponseError)(nil); errors.As(err, &failed) {
			contentRange := ""
			if failed.RawResponse != nil {
				contentRange = failed.RawResponse.Header.Get("Content-Range")
			}
			return refused(r, failed.StatusCode, contentRange, err)
		} else if err != nil {
			return nil, rangeread.Info{}, err
		}
		whole := raw != nil && raw.StatusCode == http.StatusOK
		return answer(r, resp.Body, whole, value(resp.ContentRange), length(resp.ContentLength), string(value(resp.ETag)))
	}
}

// value returns what a header says, or nothing if it is not there.
func value[T ~string](s *T) T {
	if s == nil {
		return ""
	}
	return *s
}
