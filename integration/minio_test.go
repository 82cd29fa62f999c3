package integration

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestMinio(t *testing.T) {
	s := serve(t, gofakes3.New(s3mem.New()).Server())
	own, err := minio.DefaultTransport(false) // the default of the client
	require.NoError(t, err)
	defer own.CloseIdleConnections()
	base := numbered{own}
	address, creds := s.Listener.Addr().String(), credentials.NewStaticV4("key", "secret", "")
	plain, err := minio.New(address, &minio.Options{Creds: creds, Region: "eu-central-1", Transport: base})
	require.NoError(t, err)

	transport := hedge.New(base)
	client, err := minio.New(address, &minio.Options{Creds: creds, Region: "eu-central-1", Transport: transport})

	require.NoError(t, err)
	require.NoError(t, client.MakeBucket(t.Context(), "shop", minio.MakeBucketOptions{}))
	object := strings.Repeat("what is in stock; ", 1<<16) // 1 MiB
	once(t, s, func(ctx context.Context) error {
		_, err := client.PutObject(ctx, "shop", "catalog", strings.NewReader(object), int64(len(object)), minio.PutObjectOptions{})
		return err
	})
	fetch := func(c *minio.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			o, err := c.GetObject(ctx, "shop", "catalog", minio.GetObjectOptions{})
			if err != nil {
				return "", err
			}
			defer o.Close()
			b, err := io.ReadAll(o)
			return string(b), err
		}
	}
	require.True(t, object == same(t, s, transport, fetch(plain), fetch(client)))
}
