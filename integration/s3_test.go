package integration

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestS3(t *testing.T) {
	s := serve(t, gofakes3.New(s3mem.New()).Server())
	cfg := aws.Config{
		Region:       "eu-central-1",
		BaseEndpoint: aws.String(s.URL),
		Credentials:  credentials.NewStaticCredentialsProvider("key", "secret", ""),
	}
	paths := func(o *s3.Options) { o.UsePathStyle = true }
	own := awshttp.NewBuildableClient().GetTransport() // the default of the client
	defer own.CloseIdleConnections()
	base := numbered{own}
	plain := s3.NewFromConfig(cfg, paths, func(o *s3.Options) { o.HTTPClient = &http.Client{Transport: base} })

	transport := hedge.New(base)
	cfg.HTTPClient = &http.Client{Transport: transport}
	client := s3.NewFromConfig(cfg, paths)

	bucket, key := aws.String("shop"), aws.String("catalog")
	_, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: bucket})
	require.NoError(t, err)
	object := strings.Repeat("what is in stock; ", 1<<16) // 1 MiB
	once(t, s, func(ctx context.Context) error {
		_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader(object)})
		return err
	})
	get := func(c *s3.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key})
			if err != nil {
				return "", err
			}
			defer out.Body.Close()
			b, err := io.ReadAll(out.Body)
			return string(b), err
		}
	}
	require.True(t, object == same(t, s, transport, get(plain), get(client)))
}
