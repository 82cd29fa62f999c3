package dnshedge_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

func TestAddressesReturnsServersThatAreAsked(t *testing.T) {
	up := func(s string) dnshedge.Upstream {
		u, err := dnshedge.ParseUpstream(s)
		require.NoError(t, err)
		return u
	}
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(conf, []byte("nameserver 192.0.2.1\nnameserver 2001:db8::1\n"), 0o600))
	for _, c := range []struct {
		client *dnshedge.Client
		name   string
		want   []string
	}{
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1"), up("tls://192.0.2.2#dns.example")}, Fallback: []dnshedge.Upstream{up("tcp://192.0.2.3")}}, "example",
			[]string{"udp://192.0.2.1:53", "tls://192.0.2.2:853#dns.example", "tcp://192.0.2.3:53"}},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1")}, Routes: map[string]dnshedge.Exchanger{"corp.example": nil, "local.example": new(dnshedge.Client)}}, "www.corp.example.", []string{"udp://192.0.2.1:53"}},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1")}, Routes: map[string]dnshedge.Exchanger{"example": new(dnshedge.Client), "corp.example": nil}}, "www.corp.example.", []string{"udp://192.0.2.1:53"}},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1")}, Routes: map[string]dnshedge.Exchanger{"corp.example": nil, "www.corp.example": new(dnshedge.Client)}}, "www.corp.example.", nil},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1")}, Routes: map[string]dnshedge.Exchanger{"local.example": new(dnshedge.Client)}}, "www.local.example.", nil},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{up("192.0.2.1")}, Routes: map[string]dnshedge.Exchanger{"local.example": new(dnshedge.Client)}}, "example.", []string{"udp://192.0.2.1:53"}},
		{&dnshedge.Client{Exchanger: new(dnshedge.Client)}, "example.", nil},
		{&dnshedge.Client{Timeout: -1}, "example.", nil},
		{&dnshedge.Client{ResolvConf: conf}, "example.", []string{"udp://192.0.2.1:53", "udp://[2001:db8::1]:53"}},
		{&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tls", Addr: "dns.example:853", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}, "no..name", nil},
	} {
		assert.Equal(t, c.want, c.client.Addresses(c.name), c.name)
		c.client.Close()
	}
}

// A caller names the address of one of the Client's upstreams. The settings of that upstream then apply.
func TestClientAsksConfiguredUpstreamByItsAddress(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(new(dnshedge.Client), dnshedge.Upstream{Net: "udp", Addr: "dns.example:53", Addrs: []netip.Addr{l.net.Host("a").Addr()}})
		for _, address := range c.Addresses("x.example.") {
			r, _, err := c.Exchange(question("x.example.", 1), address)
			require.NoError(t, err)
			assert.Equal(t, "192.0.2.1", addr(r))
		}
		assert.Len(t, c.Stats().Upstreams, 1)
	})
}
