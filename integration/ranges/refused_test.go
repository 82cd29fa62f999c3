package ranges

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	miniocredentials "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/gohedge/hedge/rangeread"
)

// fetches returns the recipes of all stores that speak HTTP, for one server.
func fetches(t *testing.T, h http.Handler) map[string]rangeread.Fetch {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("X-Goog-Generation", "1")
		if asked := r.Header.Get("X-Ms-Range"); asked != "" {
			r.Header.Set("Range", asked)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	aws := s3.New(s3.Options{
		BaseEndpoint: &server.URL, Region: "eu-central-1", UsePathStyle: true, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
		RetryMaxAttempts: 1, DisableLogOutputChecksumValidationSkipped: true, HTTPClient: &http.Client{Transport: transport(t)},
	})
	mini, err := minio.New(strings.TrimPrefix(server.URL, "http://"), &minio.Options{
		Creds: miniocredentials.NewStaticV4("key", "secret", ""), Region: "eu-central-1", Transport: transport(t), MaxRetries: 1,
	})
	require.NoError(t, err)
	azure, err := azblob.NewClientWithNoCredential(server.URL, nil)
	require.NoError(t, err)
	t.Setenv("STORAGE_EMULATOR_HOST", server.URL)
	google, err := storage.NewClient(t.Context(), option.WithHTTPClient(&http.Client{Transport: transport(t)}))
	require.NoError(t, err)
	t.Cleanup(func() { google.Close() })
	return map[string]rangeread.Fetch{
		"HTTP": HTTP(&http.Client{Transport: transport(t)}, server.URL+"/shop/catalog"), "S3": S3(aws, "shop", "catalog"), "Minio": Minio(mini, "shop", "catalog"),
		"Azure": Azure(azure, "shop", "catalog"), "GCS": GCS(google.Bucket("shop").Object("catalog")),
	}
}

// TestPartWithoutContentRangeIsRefused has a gateway that does not pass the header Content-Range on.
func TestPartWithoutContentRangeIsRefused(t *testing.T) {
	object := content(1)[:16_000]
	all := fetches(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		http.ServeContent(recorded, r, "", time.Time{}, bytes.NewReader(object))
		w.Header().Set("Content-Length", fmt.Sprint(recorded.Body.Len()))
		w.WriteHeader(recorded.Code)
		_, _ = w.Write(recorded.Body.Bytes())
	}))
	for name, fetch := range all {
		for _, r := range []rangeread.Range{{Length: 1}, {Length: 4096}, {Length: 16_000}, {Length: 20_000}, {Offset: 5000, Length: 100}, {Offset: 15_999, Length: 1}} {
			body, _, err := fetch(t.Context(), r)
			if body != nil {
				body.Close()
			}
			assert.Error(t, err, "%s %+v", name, r)
			assert.NotErrorIs(t, err, io.EOF, "%s %+v", name, r)
		}
		got, err := io.ReadAll(rangeread.New(fetch, rangeread.Options{PartSize: 4096}).NewReader(t.Context(), 0, -1))
		assert.Error(t, err, name)
		assert.Empty(t, got, name)
	}
}

// TestWholeObjectIsRead has a server that ignores ranges. minio-go does not say the status, so its recipe refuses the answer.
func TestWholeObjectIsRead(t *testing.T) {
	object := content(1)[:16_000]
	all := fetches(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(object) }))
	for _, name := range []string{"HTTP", "S3", "Azure"} {
		got, err := io.ReadAll(rangeread.New(all[name], rangeread.Options{PartSize: 4096}).NewReader(t.Context(), 0, -1))
		assert.NoError(t, err, name)
		assert.True(t, bytes.Equal(object, got), "%s: %d bytes", name, len(got))
	}
	got, err := io.ReadAll(rangeread.New(all["Minio"], rangeread.Options{}).NewReader(t.Context(), 0, -1))
	assert.ErrorContains(t, err, `the Content-Range ""`)
	assert.Empty(t, got)
}

// TestRefusalOfALongerObjectIsNoEnd has a server that refuses each range that is not wholly inside the object.
func TestRefusalOfALongerObjectIsNoEnd(t *testing.T) {
	object := content(1)[:100]
	all := fetches(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var first, last int
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); n == 2 && last >= len(object) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(object)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(object))
	}))
	for name, fetch := range all {
		for r, ends := range map[rangeread.Range]bool{
			{Length: 101}: false, {Offset: 99, Length: 2}: false, {Offset: 100, Length: 1}: true, {Offset: 1000, Length: 1}: true,
		} {
			_, _, err := fetch(t.Context(), r)
			assert.Error(t, err, "%s %+v", name, r)
			assert.Equal(t, ends, err == io.EOF, "%s %+v: %v", name, r, err)
		}
		got, err := io.ReadAll(rangeread.New(fetch, rangeread.Options{}).NewReader(t.Context(), 0, -1))
		assert.Error(t, err, name)
		assert.Empty(t, got, name)
	}
}

// TestHTTPErrorsHaveNoSecrets: no error of the recipe shows a password or the signature of a URL, and errors of the connection can be told.
func TestHTTPErrorsHaveNoSecrets(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/part":
			w.WriteHeader(http.StatusPartialContent)
		case "/changed":
			w.WriteHeader(http.StatusPreconditionFailed)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for _, address := range []string{
		"http://reader:hunter2@" + host + "/part?signature=hunter2", "http://reader:hunter2@" + host + "/changed?signature=hunter2",
		"http://hunter2@" + host + "/?signature=hunter2#hunter2", strings.Replace(closed.URL, "//", "//hunter2@", 1) + "/?signature=hunter2",
		"http://reader:hunter2/x@" + host + "/", "http://" + host + "/%zz?signature=hunter2",
	} {
		_, _, err := HTTP(server.Client(), address)(t.Context(), rangeread.Range{Length: 4})
		if assert.Error(t, err, address) {
			assert.NotErrorIs(t, err, io.EOF, address)
			assert.NotContains(t, err.Error(), "hunter2", address)
		}
	}
}
