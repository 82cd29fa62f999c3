package dnshedge_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// A path may begin with two slashes, and have escapes (RFC 3986 §3.3).
func TestUpstreamPathIsSentUnchanged(t *testing.T) {
	var asked string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, _, _ := strings.Cut(r.RequestURI, "?")
		asked = "https://" + r.Host + path
		http.Error(w, "", http.StatusTeapot)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for _, path := range []string{"/q", "//q", "//other.example/q", "///", "/a%2Fb", "/a/../b", "//a:1@b/%20"} {
		for _, post := range []string{"", ";post"} {
			up, err := dnshedge.ParseUpstream(server.URL + path + "#example.com" + post)
			require.NoError(t, err, path)
			c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}, TLSConfig: server.Client().Transport.(*http.Transport).TLSClientConfig}
			_, _, err = c.ExchangeContext(t.Context(), question("x.example.", dns.TypeA), "")
			require.ErrorContains(t, err, "418", path)
			assert.Equal(t, server.URL+path, asked)
			require.NoError(t, c.Close())
		}
	}
}

func TestUpstreamRejectsInvalidPath(t *testing.T) {
	for _, path := range []string{"q", "/%zz", "/q?dns=1", "/q#x"} {
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "https", Addr: "192.0.2.1:443", Path: path}}}
		require.ErrorContains(t, c.Validate(), "Path", path)
	}
}
