package ranges

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/gohedge/hedge/rangeread"
)

// S3 reads an object by the AWS SDK.
func S3(client *s3.Client, bucket, key string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		in := &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: aws.String(header(r))}
		if r.Match != "" {
			in.IfMatch = &r.Match
		}
		out, err := client.GetObject(ctx, in)
		if failed := (*awshttp.ResponseError)(nil); errors.As(err, &failed) {
			contentRange := ""
			if failed.Response != nil {
				contentRange = failed.Response.Header.Get("Content-Range")
			}
			return refused(r, failed.HTTPStatusCode(), contentRange, err)
		} else if err != nil {
			return nil, rangeread.Info{}, err
		}
		resp, ok := middleware.GetRawResponse(out.ResultMetadata).(*smithyhttp.Response)
		whole := ok && resp.StatusCode == http.StatusOK
		return answer(r, out.Body, whole, aws.ToString(out.ContentRange), length(out.ContentLength), aws.ToString(out.ETag))
	}
}

// length returns what a header says, or -1 if it is not there.
func length(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}
