package ranges

import (
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
)

func TestMinio(t *testing.T) {
	s := new(store)
	address := s.bucket(t)
	client, err := minio.New(strings.TrimPrefix(address, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4("key", "secret", ""), Region: "eu-central-1", Transport: transport(t),
	})
	require.NoError(t, err)
	s.fetch = Minio(client, "shop", "catalog")
	s.check(t)
}
