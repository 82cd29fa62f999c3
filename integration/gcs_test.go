package integration

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/storage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"github.com/gohedge/hedge"
)

func TestGCS(t *testing.T) {
	s := serve(t, bucket(t))
	t.Setenv("STORAGE_EMULATOR_HOST", s.URL)
	tokens := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "token"})
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.MaxIdleConnsPerHost = 100 // as the default of the client
	defer own.CloseIdleConnections()
	base := numbered{own}
	ctx := t.Context()
	tokened, err := htransport.NewTransport(ctx, base, option.WithTokenSource(tokens))
	require.NoError(t, err)
	plain, err := storage.NewClient(ctx, option.WithHTTPClient(&http.Client{Transport: tokened}))
	require.NoError(t, err)
	defer plain.Close()

	transport := hedge.New(base)
	authenticated, err := htransport.NewTransport(ctx, transport, option.WithTokenSource(tokens))
	require.NoError(t, err)
	client, err := storage.NewClient(ctx, option.WithHTTPClient(&http.Client{Transport: authenticated}))

	require.NoError(t, err)
	defer client.Close()
	object := strings.Repeat("what is in stock; ", 1<<16) // 1 MiB
	once(t, s, func(ctx context.Context) error {
		w := client.Bucket("shop").Object("catalog").NewWriter(ctx)
		if _, err := io.WriteString(w, object); err != nil {
			return err
		}
		return w.Close()
	})
	get := func(c *storage.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			r, err := c.Bucket("shop").Object("catalog").NewReader(ctx)
			if err != nil {
				return "", err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return string(b), err
		}
	}
	require.True(t, object == same(t, s, transport, get(plain), get(client)))
	size := func(c *storage.Client) func(context.Context) (int64, error) {
		return func(ctx context.Context) (int64, error) {
			attrs, err := c.Bucket("shop").Object("catalog").Attrs(ctx)
			if err != nil {
				return 0, err
			}
			return attrs.Size, nil
		}
	}
	assert.EqualValues(t, len(object), same(t, s, transport, size(plain), size(client)))
	once(t, s, func(ctx context.Context) error { return client.Bucket("shop").Object("catalog").Delete(ctx) })
}

// bucket is a server of objects: uploads in one request, reads, attributes, deletions.
func bucket(t *testing.T) http.Handler {
	var objects sync.Map // names to contents
	attributes := func(w http.ResponseWriter, name string, content []byte) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"bucket": "shop", "name": name, "size": strconv.Itoa(len(content))})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload/storage/v1/b/shop/o", func(w http.ResponseWriter, r *http.Request) {
		_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if !assert.NoError(t, err) {
			return
		}
		parts := multipart.NewReader(r.Body, params["boundary"])
		var attrs struct{ Name string }
		part, err := parts.NextPart()
		if !assert.NoError(t, err) || !assert.NoError(t, json.NewDecoder(part).Decode(&attrs)) {
			return
		}
		part, err = parts.NextPart()
		if !assert.NoError(t, err) {
			return
		}
		content, err := io.ReadAll(part)
		assert.NoError(t, err)
		objects.Store(attrs.Name, content)
		attributes(w, attrs.Name, content)
	})
	mux.HandleFunc("GET /storage/v1/b/shop/o/{name}", func(w http.ResponseWriter, r *http.Request) {
		content, _ := objects.Load(r.PathValue("name"))
		attributes(w, r.PathValue("name"), content.([]byte))
	})
	mux.HandleFunc("DELETE /storage/v1/b/shop/o/{name}", func(w http.ResponseWriter, r *http.Request) {
		objects.Delete(r.PathValue("name"))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /shop/{name}", func(w http.ResponseWriter, r *http.Request) {
		content, _ := objects.Load(r.PathValue("name"))
		w.Header().Set("Content-Length", strconv.Itoa(len(content.([]byte))))
		_, _ = w.Write(content.([]byte))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "Bearer token", r.Header.Get("Authorization"))
		mux.ServeHTTP(w, r)
	})
}
