package dnshedge_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// recorder is a dns.ResponseWriter.
type recorder struct {
	dns.ResponseWriter
	remote net.Addr
	wire   []byte
}

func (w *recorder) RemoteAddr() net.Addr { return w.remote }

func (w *recorder) ConnectionState() *tls.ConnectionState { return nil } // as a dns.Server's own

func (w *recorder) Write(b []byte) (int, error) {
	w.wire = append([]byte(nil), b...)
	return len(b), nil
}

func serve(t *testing.T, c *dnshedge.Client, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	w := &recorder{remote: &net.TCPAddr{}}
	if network == "udp" {
		w.remote = &net.UDPAddr{}
	}
	c.ServeDNS(w, m)
	r := new(dns.Msg)
	require.NoError(t, r.Unpack(w.wire))
	assert.Equal(t, m.Id, r.Id)
	assert.True(t, r.Response)
	return r
}

func TestServeDNSForwards(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", zone)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		for range 2 {
			r := serve(t, c, "udp", question("A.example.", dns.TypeA))
			assert.Len(t, r.Answer, 2)
			assert.Equal(t, "A.example.", r.Question[0].Name)
			assert.Nil(t, r.IsEdns0())
			r = serve(t, c, "udp", question("nx.example.", dns.TypeA))
			assert.Equal(t, dns.RcodeNameError, r.Rcode)

			m := question("long.example.", dns.TypeTXT)
			m.SetEdns0(1232, false)
			r = serve(t, c, "udp", m)
			assert.True(t, r.Truncated)
			assert.Empty(t, r.Answer)
			assert.NotNil(t, r.IsEdns0())
			r = serve(t, c, "tcp", m)
			assert.False(t, r.Truncated)
			assert.Len(t, r.Answer, 1)
		}
		odd := question("x.", dns.TypeA)
		odd.Opcode = dns.OpcodeUpdate
		assert.Equal(t, dns.RcodeNotImplemented, serve(t, c, "udp", odd).Rcode)
		odd = question("x.", dns.TypeAXFR)
		assert.Equal(t, dns.RcodeRefused, serve(t, c, "tcp", odd).Rcode)
		odd = question("x.", dns.TypeA)
		odd.SetTsig("key.", dns.HmacSHA256, 300, 0)
		assert.Equal(t, dns.RcodeRefused, serve(t, c, "tcp", odd).Rcode)
		odd = &dns.Msg{}
		assert.Equal(t, dns.RcodeFormatError, serve(t, c, "tcp", odd).Rcode)
	})
}

func TestServeDNSSaysWhyItFails(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		for code, up := range map[uint16]dnshedge.Upstream{22: l.up("udp", "a"), 23: l.up("udp", "b")} {
			c := l.client(&dnshedge.Client{}, up)
			m := question("x.example.", dns.TypeA)
			m.SetEdns0(1232, true)
			r := serve(t, c, "udp", m)
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			assert.Equal(t, []uint16{code}, edes(r))
			assert.True(t, r.IsEdns0().Do())
			r = serve(t, c, "udp", question("x.example.", dns.TypeA))
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			assert.Nil(t, r.IsEdns0())
		}
	})
}
