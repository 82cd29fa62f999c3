package dnshedge_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

const somePin = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="

func TestParseUpstream(t *testing.T) {
	for s, want := range map[string]dnshedge.Upstream{
		"192.0.2.1":                   {Net: "udp", Addr: "192.0.2.1:53"},
		"192.0.2.1:5353":              {Net: "udp", Addr: "192.0.2.1:5353"},
		"2001:db8::1":                 {Net: "udp", Addr: "[2001:db8::1]:53"},
		"[2001:db8::1]:54":            {Net: "udp", Addr: "[2001:db8::1]:54"},
		"udp://192.0.2.1":             {Net: "udp", Addr: "192.0.2.1:53"},
		"UDP://h:54":                  {Net: "udp", Addr: "h:54"},
		"tcp://[2001:db8::1]":         {Net: "tcp", Addr: "[2001:db8::1]:53"},
		"tcp://2001:db8::1":           {Net: "tcp", Addr: "[2001:db8::1]:53"},
		"tls://192.0.2.1#dns.example": {Net: "tls", Addr: "192.0.2.1:853", ServerName: "dns.example"},
		"tls://dns.example:8853":      {Net: "tls", Addr: "dns.example:8853"},
		"https://dns.example":         {Net: "https", Addr: "dns.example:443", Path: "/dns-query"},
		"https://dns.example/":        {Net: "https", Addr: "dns.example:443", Path: "/dns-query"},
		"https://192.0.2.1:8443/q#dns.example": {
			Net: "https", Addr: "192.0.2.1:8443", Path: "/q", ServerName: "dns.example",
		},
		"tls://192.0.2.1#;pin=" + somePin: {Net: "tls", Addr: "192.0.2.1:853", Pins: []string{somePin}},
		"https://dns.example/q#dns2.example;pin=" + somePin + ";pin=" + somePin + ";post": {
			Net: "https", Addr: "dns.example:443", Path: "/q", ServerName: "dns2.example", Post: true, Pins: []string{somePin, somePin},
		},
	} {
		u, err := dnshedge.ParseUpstream(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, u, s)
		again, err := dnshedge.ParseUpstream(u.String())
		require.NoError(t, err, u.String())
		assert.Equal(t, u, again)
	}
}

func TestParseUpstreamReportsErrors(t *testing.T) {
	for s, want := range map[string]string{
		"":                                "want an IP address",
		"dns.example":                     "want an IP address",
		"192.0.2.1:0":                     "port 0",
		"192.0.2.1:70000":                 "want an IP address",
		"quic://192.0.2.1":                `scheme "quic"`,
		"udp://":                          `host ""`,
		"udp://h:dns":                     `port "dns"`,
		"udp://h:0":                       `port "0"`,
		"udp://h h":                       `host "h h"`,
		"udp://192.0.2.1#x":               "for tls and https",
		"udp://192.0.2.1#trust-ad":        "for tls and https",
		"udp://192.0.2.1#;trust-ad;post":  `option "post"`,
		"tls://192.0.2.1#":                "empty name",
		"tls://192.0.2.1#;pin=abcd":       `pin "abcd"; want 32 bytes`,
		"tls://192.0.2.1#x;post":          `option "post"`,
		"tls://192.0.2.1#x;":              `option ""`,
		"udp://192.0.2.1#;pin=" + somePin: "for tls and https",
		"tls://192.0.2.1#a b":             `"a b"`,
		"https://u:p@dns.example/":        "user information",
		"https://dns.example/dns?x=y":     "a query has no place here",
		"https://[fe80::1%25eth0]/":       "IPv6 zone",
		"https://dns.example/%zz":         "invalid URL escape",
		"udp://" + string([]byte{0xff}):   "host",
	} {
		_, err := dnshedge.ParseUpstream(s)
		require.ErrorContains(t, err, want, s)
		require.ErrorContains(t, err, "upstream ", s)
	}
}

func TestUpstreamValidatesPinsAndPost(t *testing.T) {
	for want, up := range map[string]dnshedge.Upstream{
		"Pins":               {Net: "tcp", Addr: "192.0.2.1:53", Pins: []string{somePin}},
		`"x"; want 32 bytes`: {Net: "tls", Addr: "192.0.2.1:853", Pins: []string{"x"}},
		"Post is for https":  {Net: "tls", Addr: "192.0.2.1:853", Post: true},
	} {
		_, _, err := (&dnshedge.Client{Upstreams: []dnshedge.Upstream{up}}).Exchange(question("x.example.", 1), "")
		require.ErrorContains(t, err, want)
	}
}

// Each transport is one file of dnshedge/internal/transport. Only the default scheme may be named in this package.
func TestTransportNamesAreInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				scheme, _, _ := strings.Cut(text, "://")
				if _, ok := transport.FindScheme(scheme); ok {
					found = append(found, name+": "+lit.Value)
				}
			}
			return true
		})
	}
	assert.Equal(t, []string{`upstream.go: "udp"`, `upstream.go: "tcp"`}, found, "the defaults")
}

func FuzzParseUpstream(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "udp://h:53", "udp://192.0.2.1:53#;trust-ad", "tls://h:853#n;trust-ad", "tls://[::1]:853#x", "https://h/dns-query", "https://h/#n;post;pin=" + somePin, "://", "tcp://a:b:c", "https://[fe80::1%25eth0]/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := dnshedge.ParseUpstream(s)
		if err != nil {
			return
		}
		again, err := dnshedge.ParseUpstream(u.String())
		if err != nil || again.String() != u.String() {
			t.Fatalf("%q: %v; again: %v, %v", s, u, again, err)
		}
		// What can be parsed can be used: an error comes from the network, not from the fields.
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{u}}
		if c.Stats(); len(c.Stats().Upstreams) != 1 {
			t.Fatalf("%q: %v is not usable", s, u)
		}
		c.Close()
	})
}

// TestParseUpstreamErrorsHaveNoSecrets has URLs with a password or a token, some of which cannot be parsed.
func TestParseUpstreamErrorsHaveNoSecrets(t *testing.T) {
	for _, s := range []string{
		"https://u:s3cret@dns.example/", "https://s3cret@dns.example/", "https://u:s3cret/@dns.example/", "https://u:#s3cret@dns.example/",
		"https://u:?s3cret@dns.example/", "tls://u:s3cret@192.0.2.1", "https://u:s3cret@dns.example/#;none", "u:s3cret@192.0.2.1",
		"https://dns.example/dns?token=s3cret", "https://dns.example/%zz?token=s3cret",
	} {
		_, err := dnshedge.ParseUpstream(s)
		require.ErrorContains(t, err, "upstream ", s)
		assert.NotContains(t, err.Error(), "s3cret", s)
	}
}
