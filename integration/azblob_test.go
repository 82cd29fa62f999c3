package integration

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestAzblob(t *testing.T) {
	const account, secret = "account", "key of the account"
	var blobs sync.Map // paths to contents
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "SharedKey account:"+sharedKey(r, account, secret), r.Header.Get("Authorization"))
		switch r.Method {
		case http.MethodPut:
			content, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			blobs.Store(r.URL.Path, content)
			w.WriteHeader(http.StatusCreated)
		case http.MethodGet:
			content, _ := blobs.Load(r.URL.Path)
			_, _ = w.Write(content.([]byte))
		case http.MethodDelete:
			blobs.Delete(r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.MaxIdleConnsPerHost = 10 // as the default of the client
	defer own.CloseIdleConnections()
	base := numbered{own}
	url := s.URL
	creds, err := azblob.NewSharedKeyCredential(account, base64.StdEncoding.EncodeToString([]byte(secret)))
	require.NoError(t, err)
	plain, err := azblob.NewClientWithSharedKeyCredential(url, creds,
		&azblob.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: base}}})
	require.NoError(t, err)

	transport := hedge.New(base)
	client, err := azblob.NewClientWithSharedKeyCredential(url, creds, &azblob.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: transport}},
	})

	require.NoError(t, err)
	blob := strings.Repeat("what is in stock; ", 1<<16) // 1 MiB
	once(t, s, func(ctx context.Context) error {
		_, err := client.UploadBuffer(ctx, "shop", "catalog", []byte(blob), nil)
		return err
	})
	get := func(c *azblob.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			resp, err := c.DownloadStream(ctx, "shop", "catalog", nil)
			if err != nil {
				return "", err
			}
			body := resp.NewRetryReader(ctx, nil)
			defer body.Close()
			b, err := io.ReadAll(body)
			return string(b), err
		}
	}
	require.True(t, blob == same(t, s, transport, get(plain), get(client)))
	once(t, s, func(ctx context.Context) error {
		_, err := client.DeleteBlob(ctx, "shop", "catalog", nil)
		return err
	})
}

// sharedKey returns the signature of a request without a query, as the service calculates it:
// https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
func sharedKey(r *http.Request, account, secret string) string {
	length := ""
	if r.ContentLength > 0 {
		length = fmt.Sprint(r.ContentLength)
	}
	h := r.Header
	signed := []string{
		r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-MD5"), h.Get("Content-Type"), "",
		h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"), h.Get("If-Unmodified-Since"), h.Get("Range"),
	}
	var own []string
	for name := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			own = append(own, name+":"+h.Get(name))
		}
	}
	slices.Sort(own)
	signed = append(append(signed, own...), "/"+account+r.URL.Path)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(strings.Join(signed, "\n")))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
