package http_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// checkAttemptHeader returns the error of a Config with the name.
func checkAttemptHeader(name string) error {
	c := hedge.DefaultConfig()
	c.AttemptHeader = name
	_, err := hedge.NewWithConfig(nil, c)
	return err
}

func TestConfigRejectsAttemptHeadersWithMeaningInHTTP(t *testing.T) {
	for _, name := range []string{"", "Hedge-Attempt", "x-copy", "X-Hedge", "attempt", "Try", "Acme-Retry", "hedge_attempt", "Hostname", "X-Host", "Ifs", "Contents", "Accepted", "Wanted", "X-Ms", "Deep", "!#$%&'*+-.^_`|~09azAZ"} {
		assert.NoError(t, checkAttemptHeader(name), name)
	}
	for _, name := range []string{"a b", "a:", ":authority", "é", "a\n", "a\x00", "(a)", "a,b", "\x80"} {
		assert.EqualError(t, checkAttemptHeader(name), fmt.Sprintf("hedge: Config.AttemptHeader: %q is not the name of a header", name))
	}
	for _, name := range []string{
		"Host", "host", "HOST", "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "TE", "Trailer", "Transfer-Encoding", "Upgrade", // of a connection
		"Content-Length", "Content-Type", "User-Agent", "Cookie", "Authorization", "Expect", "Range", "Accept", "Accept-Encoding", "Referer",
		"If-None-Match", "If-Range", "Idempotency-Key", "X-Idempotency-Key", "Sec-WebSocket-Key", "Via", "X-Forwarded-For", "Access-Control-Request-Method", "*",
		"A-IM", "Accept-Datetime", "Prefer", "Depth", "Destination", "Overwrite", "Timeout", "Lock-Token", "Digest", "Want-Repr-Digest", "Signature", "Signature-Input", // servers act on them
		"DPoP", "SOAPAction", "Negotiate", "Client-Cert", "CDN-Loop", "Traceparent", "Tracestate", "Baggage", "Upgrade-Insecure-Requests", "Save-Data", "Available-Dictionary",
		"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL", "X-Real-IP", "X-Amz-Date", "x-goog-date", "X-Ms-Range",
	} {
		assert.ErrorContains(t, checkAttemptHeader(name), "is not the name of a header that HTTP leaves free", name)
	}
}

// TestTransportSendsAllowedAttemptHeadersUnchanged compares the headers that a server gets with and without the header.
func TestTransportSendsAllowedAttemptHeadersUnchanged(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got = r.Header; r.Host == "1" || r.ContentLength == 1 {
			got = http.Header{"Host or length": nil}
		}
	}))
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	send := func(name string) http.Header {
		req, err := http.NewRequest("GET", server.URL, nil)
		require.NoError(t, err)
		if name != "" {
			req.Header[http.CanonicalHeaderKey(name)] = []string{"1"}
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil
		}
		require.NoError(t, resp.Body.Close())
		return got
	}
	without := send("")
	for _, name := range strings.Fields("Hedge-Attempt x-copy X-Hedge Try Host Content-Length Transfer-Encoding Trailer User-Agent Accept-Encoding Range Expect Connection Upgrade") {
		want := without.Clone()
		want.Set(name, "1")
		arrives := assert.ObjectsAreEqual(want, send(name))
		if checkAttemptHeader(name) == nil {
			assert.True(t, arrives, name)
		}
	}
}
