package limiter_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// unwrapped is a ResponseWriter of a middleware with the method Unwrap, for http.ResponseController.
type unwrapped struct{ http.ResponseWriter }

func (u unwrapped) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// TestLimiterKeepsResponseWriterOfMiddleware sends a small body through a middleware with a ResponseWriter of its own type, which the
// handler expects.
func TestLimiterKeepsResponseWriterOfMiddleware(t *testing.T) {
	known := false
	limited := hedge.NewLimiter(1).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, known = w.(unwrapped) }))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limited.ServeHTTP(unwrapped{w}, r) }))
	defer s.Close()
	resp, err := http.Post(s.URL, "text/plain", strings.NewReader("small"))
	require.NoError(t, err)
	resp.Body.Close()
	assert.True(t, known)
}

// TestHijackedConnectionHasWholeBody has handlers that read a part of the body, hijack the connection, and read the rest from its buffer.
func TestHijackedConnectionHasWholeBody(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 4096)
	for name, c := range map[string]struct {
		body    string
		read    int // bytes before the handler hijacks
		next    string
		upgrade string
		wrap    func(http.ResponseWriter) http.ResponseWriter
	}{
		"nothing was read":            {body: "hello"},
		"a part was read":             {body: "hello", read: 2},
		"all was read":                {body: "hello", read: 5, next: "more"},
		"bytes follow the body":       {body: "hello", next: "more"},
		"64 KiB":                      {body: large, next: "more"},
		"upgrade behind a middleware": {body: "hello", upgrade: "tcp", wrap: func(w http.ResponseWriter) http.ResponseWriter { return unwrapped{w} }},
		"a part of 64 KiB was read":   {body: large, read: 5000},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.body + c.next
			limited := hedge.NewLimiter(1).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got := make([]byte, len(want))
				_, err := io.ReadFull(r.Body, got[:c.read])
				assert.NoError(t, err)
				conn, rw, err := http.NewResponseController(w).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				defer conn.Close()
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err = io.ReadFull(rw, got[c.read:])
				assert.NoError(t, err)
				assert.True(t, want == string(got), "the handler has read other bytes than the client has sent")
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}))
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.wrap != nil {
					w = c.wrap(w)
				}
				limited.ServeHTTP(w, r)
			}))
			defer s.Close()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			r, err := http.NewRequest(http.MethodPost, s.URL, strings.NewReader(c.body))
			require.NoError(t, err)
			if c.upgrade != "" {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", c.upgrade)
			}
			require.NoError(t, r.Write(conn))
			_, err = io.WriteString(conn, c.next)
			require.NoError(t, err)
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
		})
	}
}

// TestLimiterKeepsInterfacesOfResponseWriter sends a small body, which the Limiter reads ahead.
func TestLimiterKeepsInterfacesOfResponseWriter(t *testing.T) {
	type interfaces struct{ flusher, hijacker, readerFrom, notifier, stringWriter bool }
	var got interfaces
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, got.flusher = w.(http.Flusher)
		_, got.hijacker = w.(http.Hijacker)
		_, got.readerFrom = w.(io.ReaderFrom)
		_, got.notifier = w.(interface{ CloseNotify() <-chan bool })
		_, got.stringWriter = w.(io.StringWriter)
		c := http.NewResponseController(w)
		assert.NoError(t, c.SetReadDeadline(time.Time{}))
		assert.NoError(t, c.SetWriteDeadline(time.Time{}))
		if r.ProtoMajor == 1 {
			assert.NoError(t, c.EnableFullDuplex())
		}
		assert.NoError(t, c.Flush())
	})
	for _, http2 := range []bool{false, true} {
		var seen []interfaces
		for _, h := range []http.Handler{handler, hedge.NewLimiter(1).Handler(handler)} {
			s := httptest.NewUnstartedServer(h)
			s.EnableHTTP2 = http2
			s.StartTLS()
			resp, err := s.Client().Post(s.URL, "text/plain", strings.NewReader("small"))
			require.NoError(t, err)
			resp.Body.Close()
			s.Close()
			seen = append(seen, got)
		}
		assert.Equal(t, seen[0], seen[1])
	}
}
