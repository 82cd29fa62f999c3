package ranges

import (
	"context"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

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
			return refused(failed.HTTPStatusCode(), err)
		} else if err != nil {
			return nil, rangeread.Info{}, err
		}
		return answer(out.Body, aws.ToString(out.ContentRange), length(out.ContentLength), aws.ToString(out.ETag))
	}
}

// length returns what a header says, or -1 if it is not there.
func length(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}
