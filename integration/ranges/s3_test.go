package ranges

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"
)

func TestS3(t *testing.T) {
	s := new(store)
	address := s.bucket(t)
	client := s3.New(s3.Options{
		Region: "eu-central-1", BaseEndpoint: &address, UsePathStyle: true, HTTPClient: &http.Client{Transport: transport(t)},
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})
	s.fetch = S3(client, "shop", "catalog")
	s.check(t)
}

// bucket starts a server of S3 and returns its address.
func (s *store) bucket(t *testing.T) string {
	objects := s3mem.New()
	require.NoError(t, objects.CreateBucket("shop"))
	s.put = func(b []byte) {
		_, err := objects.PutObject("shop", "catalog", map[string]string{"Last-Modified": "Tue, 24 Nov 2026 00:00:00 GMT"}, bytes.NewReader(b), int64(len(b)), nil)
		require.NoError(t, err)
	}
	s.gate = new(gate)
	return s.gate.before(t, conditional(gofakes3.New(objects).Server()))
}

// conditional is gofakes3 with the header If-Match of GetObject, which it lacks: another tag is 412, as
// https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html says.
func conditional(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tag := r.Header.Get("If-Match"); tag != "" && r.Method == http.MethodGet {
			head := r.Clone(r.Context())
			head.Method = http.MethodHead
			head.Header.Del("Range")
			var answer headers
			h.ServeHTTP(&answer, head)
			if answer.Header().Get("ETag") != tag {
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(http.StatusPreconditionFailed)
				_, _ = w.Write([]byte("<Error><Code>PreconditionFailed</Code></Error>"))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// headers is an answer of which only those are kept.
type headers struct{ header http.Header }

func (h *headers) Header() http.Header {
	if h.header == nil {
		h.header = make(http.Header)
	}
	return h.header
}
func (h *headers) Write(b []byte) (int, error) { return len(b), nil }
func (h *headers) WriteHeader(int)             {}
