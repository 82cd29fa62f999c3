package ranges

import (
	"net/http"
	"testing"

	"cloud.google.com/go/storage"
	"github.com/fsouza/fake-gcs-server/fakestorage"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
)

func TestGCS(t *testing.T) {
	s := &store{gate: new(gate)}
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "shop"})
	s.put = func(b []byte) {
		server.CreateObject(fakestorage.Object{ObjectAttrs: fakestorage.ObjectAttrs{BucketName: "shop", Name: "catalog"}, Content: b})
	}
	objects := server.HTTPHandler()
	t.Setenv("STORAGE_EMULATOR_HOST", s.gate.before(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "storage.googleapis.com" // where the server has the XML API
		objects.ServeHTTP(w, r)
	})))
	client, err := storage.NewClient(t.Context(), option.WithHTTPClient(&http.Client{Transport: transport(t)}))
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	s.fetch = GCS(client.Bucket("shop").Object("catalog"))
	s.check(t)
}
