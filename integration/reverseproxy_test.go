package integration

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestReverseProxy(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", catalog)
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	})
	s := serve(t, mux)
	backend, err := url.Parse(s.URL)
	require.NoError(t, err)
	base := base(t)

	transport := hedge.New(base)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		Transport: transport,
	}

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.slow.Load() {
			r = r.WithContext(hedge.WithDelay(r.Context(), delay))
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	same(t, s, transport, get(s.Client(), s.URL), get(front.Client(), front.URL))

	once(t, s, func(ctx context.Context) error {
		_, err := whole(front.Client().Post(front.URL, "text/plain", strings.NewReader("a lamp")))
		return err
	})
	once(t, s, func(ctx context.Context) error {
		c, _, err := websocket.Dial(ctx, front.URL+"/echo", nil)
		if err != nil {
			return err
		}
		defer c.CloseNow()
		for _, message := range []string{"how many", "lamps"} {
			if err := c.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
				return err
			}
			_, echo, err := c.Read(ctx)
			if err != nil {
				return err
			}
			assert.Equal(t, message, string(echo))
		}
		return c.Close(websocket.StatusNormalClosure, "")
	})
}
