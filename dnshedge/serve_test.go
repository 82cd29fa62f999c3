package dnshedge_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
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

func TestServeDNSAddsExtendedErrors(t *testing.T) {
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

func TestServeDNSLimitsUDPResponsesTo1232Bytes(t *testing.T) {
	bubble(t, func(l *lab) {
		var rrs []string
		for i := range 200 {
			rrs = append(rrs, fmt.Sprintf("A 192.0.2.%d", i))
		}
		l.serve("a", with(rrs...))
		c := l.client(off(), l.up("tcp", "a"))
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(4096, false)
		assert.True(t, serve(t, c, "udp", m).Truncated, "RFC 9715: larger ones are fragmented, and are of use to attackers")
		assert.Len(t, serve(t, c, "tcp", m).Answer, 200)
	})
}

func TestServeDNSOmitsErrorTextsBeforeTruncation(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			r := good(q)
			if q.Question[0].Name == "fails.example." {
				r = rcode(dns.RcodeServerFailure)(q)
			}
			r.Msg.SetEdns0(1232, false)
			o := r.Msg.IsEdns0()
			o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: 4, ExtraText: strings.Repeat("x", 600)})
			return r
		})
		for _, name := range []string{"x.example.", "fails.example."} {
			m := question(name, dns.TypeA)
			m.SetEdns0(512, false)
			r := serve(t, c, "udp", m)
			assert.LessOrEqual(t, r.Len(), 512)
			assert.False(t, r.Truncated)
			assert.Equal(t, []uint16{4}, edes(r))
			m.IsEdns0().SetUDPSize(1232)
			assert.Greater(t, serve(t, c, "udp", m).Len(), 600)
		}
	})
}

func TestServeDNSSendsLongestAnswerOverStream(t *testing.T) {
	bubble(t, func(l *lab) {
		m := question("x.example.", dns.TypeTXT)
		long := new(dns.Msg).SetReply(m)
		long.Compress = true
		for size := 65528; size > long.Len(); {
			rr := &dns.TXT{Hdr: dns.RR_Header{Name: "x.example.", Rrtype: dns.TypeTXT, Class: 1, Ttl: 300}, Txt: []string{""}}
			long.Answer = append(long.Answer, rr)
			rr.Txt[0] = strings.Repeat("x", min(size-long.Len(), 200))
			if left := size - long.Len(); left > 0 && left < 13 {
				rr.Txt[0] += strings.Repeat("x", left)
			}
		}
		require.Equal(t, 65528, long.Len())
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			r := long.Copy()
			r.Id, r.Compress, r.RecursionAvailable = q.Id, true, true
			return dnstest.Reply{Msg: r}
		})
		c := l.client(off(), l.up("tcp", "a"))
		m.SetEdns0(1232, false)
		r := serve(t, c, "tcp", m)
		assert.False(t, r.Truncated)
		assert.Len(t, r.Answer, len(long.Answer))
		assert.Nil(t, r.IsEdns0(), "there is no room for it")
	})
}

// wrapped is a middleware's writer.
type wrapped struct {
	dns.ResponseWriter
	seen []*dns.Msg
}

func (w *wrapped) WriteMsg(m *dns.Msg) error { w.seen = append(w.seen, m); return nil }

func TestServeDNSCallsWriteMsgOfMiddleware(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), good)
		w := &wrapped{ResponseWriter: &recorder{remote: &net.UDPAddr{}}}
		c.ServeDNS(w, question("x.example.", dns.TypeA))
		require.Len(t, w.seen, 1)
		assert.Equal(t, "192.0.2.1", addr(w.seen[0]))
		assert.True(t, w.seen[0].Compress)
	})
}

func TestServeDNSDoesNotRevealConfiguration(t *testing.T) {
	m := question("x.example.", dns.TypeA)
	m.SetEdns0(1232, false)
	r := serve(t, &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "10.1.2.3:99999"}}}, "udp", m)
	assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
	assert.NotContains(t, r.String(), "10.1.2.3")
}
