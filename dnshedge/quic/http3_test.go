package quic_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/dnstest"
)

const mediaType = "application/dns-message"

// serveHTTP3 starts an HTTP/3 server.
func serveHTTP3(t *testing.T, h http.HandlerFunc) net.Addr {
	serverTLS, _ := dnstest.Certificate()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http3.Server{Handler: h, TLSConfig: http3.ConfigureTLSConfig(serverTLS.Clone())}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(socket) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
		_ = socket.Close()
	})
	return socket.LocalAddr()
}

func TestHTTP3ClientObeysRFC8484(t *testing.T) {
	for _, post := range []bool{false, true} {
		at := serveHTTP3(t, func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, mediaType, r.Header.Get("Accept"))
			var b []byte
			var err error
			if post {
				assert.Equal(t, http.MethodPost, r.Method)
				assert.Equal(t, mediaType, r.Header.Get("Content-Type"))
				b, err = io.ReadAll(r.Body)
			} else {
				assert.Equal(t, http.MethodGet, r.Method)
				b, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
			}
			assert.NoError(t, err)
			assert.Equal(t, "/some/path", r.URL.Path)
			assert.Zero(t, len(b)%128)
			assert.Zero(t, b[0]|b[1], "the ID")
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(reply(t, frame(b))[2:])
		})
		c := newClient(t, "h3", at.String())
		c.Upstreams[0].Post, c.Upstreams[0].Path = post, "/some/path"
		ask(t, c, "a.example.")
	}
}

func TestHTTP3ClientReportsBadResponses(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"status":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "HTTP status 403"},
		"media type": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "want " + mediaType},
		"short": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(make([]byte, 5))
		}, "shorter than a header"},
		"long": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(make([]byte, 1<<20))
		}, "data after the message"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, "h3", serveHTTP3(t, test.handler).String())
			c.Timeout = 300 * time.Millisecond
			_, _, err := c.Exchange(question("a.example."), "")
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestHTTP3ClientObeysRetryAfter(t *testing.T) {
	at := serveHTTP3(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	c := newClient(t, "h3", at.String())
	_, _, err := c.Exchange(question("a.example."), "")
	var status *dnshedge.StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, 30*time.Second, status.RetryAfter)
}

// httpClient returns a client for requests to a listener.
func httpClient(t *testing.T, at net.Addr) (c *http.Client, url string) {
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName = dnstest.Name
	rt := &http3.Transport{TLSClientConfig: trusting}
	t.Cleanup(func() { _ = rt.Close() })
	return &http.Client{Transport: rt, Timeout: 5 * time.Second}, "https://" + at.String()
}

func TestHTTP3ListenerObeysRFC8484(t *testing.T) {
	f := startForwarder(t, nil)
	c, url := httpClient(t, f.http3.Addr())
	query := pack(t, question("a.example."))
	for _, test := range []struct {
		method, path, contentType string
		body                      []byte
		status                    int
	}{
		{http.MethodGet, "/dns-query?dns=" + base64.RawURLEncoding.EncodeToString(query), "", nil, 200},
		{http.MethodPost, "/dns-query", mediaType, query, 200},
		{http.MethodPost, "/dns-query", "text/plain", query, 415},
		{http.MethodPost, "/dns-query", mediaType, make([]byte, 70000), 400},
		{http.MethodGet, "/dns-query", "", nil, 400},
		{http.MethodPut, "/dns-query", mediaType, query, 405},
		{http.MethodGet, "/other", "", nil, 404},
		{http.MethodGet, "/other?" + strings.Repeat("x", 9000), "", nil, 431},
	} {
		r, err := http.NewRequestWithContext(t.Context(), test.method, url+test.path, bytes.NewReader(test.body))
		require.NoError(t, err)
		if test.contentType != "" {
			r.Header.Set("Content-Type", test.contentType)
		}
		resp, err := c.Do(r)
		require.NoError(t, err, test)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, test.status, resp.StatusCode, "%s %s", test.method, test.path)
		if test.status == 200 {
			assert.Equal(t, mediaType, resp.Header.Get("Content-Type"))
			assert.Regexp(t, "^max-age=(300|29[0-9])$", resp.Header.Get("Cache-Control"))
			assert.Zero(t, len(b)%468, "padding")
		}
	}
}

// A request whose header is incomplete ends in time, for each of the streams that a connection may have.
func TestHTTP3IncompleteHeaderEnds(t *testing.T) {
	f := startForwarder(t, nil)
	conn, err := dialRaw(t, f.http3.Addr(), func(c *tls.Config, _ *quicgo.Config) { c.NextProtos = []string{"h3"} })
	require.NoError(t, err)
	var streams []*quicgo.Stream
	for len(streams) <= 100 {
		stream, err := conn.OpenStream()
		if err != nil {
			break
		}
		header := []byte{1, 0x60, 0} // HEADERS with 8 KiB
		if len(streams)%2 == 0 {
			header = nil
		}
		_, err = stream.Write(append([]byte{0x21, 1, 0}, header...)) // a frame of a reserved type comes first
		require.NoError(t, err)
		streams = append(streams, stream)
	}
	assert.Equal(t, 100, len(streams))
	end := time.Now().Add(4 * time.Second)
	for _, stream := range streams {
		_ = stream.SetReadDeadline(end)
		_, err := stream.Read(make([]byte, 1))
		require.EqualValues(t, http3.ErrCodeRequestIncomplete, asStreamError(err), err)
	}
	assert.NoError(t, conn.Context().Err())
}

// Requests for paths that do not exist count against the rate limit.
func TestHTTP3UnknownPathsCountAgainstRateLimit(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) {
		limits := forward.DefaultLimits()
		limits.QuestionsPerSecond = 0.001
		c.Limits = &limits
	})
	c, url := httpClient(t, f.http3.Addr())
	for _, status := range []int{404, 429} {
		resp, err := c.Get(url + "/other")
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, status, resp.StatusCode)
	}
}

// A client that does not end its request loses it.
func TestHTTP3UnfinishedRequestEnds(t *testing.T) {
	f := startForwarder(t, nil)
	conn, err := dialRaw(t, f.http3.Addr(), func(c *tls.Config, _ *quicgo.Config) { c.NextProtos = []string{"h3"} })
	require.NoError(t, err)
	client := new(http3.Transport).NewClientConn(conn)
	body, write := io.Pipe()
	defer write.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+dnstest.Name+"/dns-query", body)
	require.NoError(t, err)
	r.Header.Set("Content-Type", mediaType)
	resp, err := client.RoundTrip(r)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
	resp.Body.Close()
}
