package ranges

import (
	"bytes"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/stretchr/testify/require"
)

func TestAzure(t *testing.T) {
	s := &store{gate: new(gate)}
	var b blobServer
	s.put = b.put
	client, err := azblob.NewClientWithNoCredential(s.gate.before(t, &b), &azblob.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: transport(t)}},
	})
	require.NoError(t, err)
	s.fetch = Azure(client, "shop", "catalog")
	s.check(t)
}

// A blobServer answers Get Blob for one blob as https://learn.microsoft.com/rest/api/storageservices/get-blob says: a range is in
// x-ms-range, and errors have their code in a header. There is no server of Azure's that a Go program can start.
type blobServer struct {
	versions atomic.Int64
	blob     atomic.Pointer[[]byte]
}

func (b *blobServer) put(content []byte) {
	b.blob.Store(&content)
	b.versions.Add(1)
}

func (b *blobServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != "/shop/catalog" {
		w.Header().Set("x-ms-error-code", "BlobNotFound")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("x-ms-version", r.Header.Get("x-ms-version"))
	w.Header().Set("x-ms-blob-type", "BlockBlob")
	w.Header().Set("ETag", fmt.Sprintf(`"0x%d"`, b.versions.Load()))
	if asked := r.Header.Get("x-ms-range"); asked != "" {
		r.Header.Set("Range", asked)
	}
	http.ServeContent(&refusal{ResponseWriter: w}, r, "", time.Time{}, bytes.NewReader(*b.blob.Load()))
}

// A refusal adds the code of an error to its answer.
type refusal struct{ http.ResponseWriter }

func (r *refusal) WriteHeader(status int) {
	switch status {
	case http.StatusPreconditionFailed:
		r.Header().Set("x-ms-error-code", "ConditionNotMet")
	case http.StatusRequestedRangeNotSatisfiable:
		r.Header().Set("x-ms-error-code", "InvalidRange")
	}
	r.ResponseWriter.WriteHeader(status)
}
