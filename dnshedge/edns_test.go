package dnshedge_test

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// lastOPT wraps h and stores the OPT record of the last query.
func lastOPT(opt **dns.OPT, h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		*opt = q.IsEdns0()
		return h(q)
	}
}

// withDO asks for an A record with the DO bit set.
func (l *lab) withDO(c *dnshedge.Client, name string) *dns.Msg {
	m := question(name, dns.TypeA)
	m.SetEdns0(1232, true)
	r, _, err := c.Exchange(m, "")
	require.NoError(l, err)
	return r
}

func TestClientKeepsEDNSAfterOneFORMERR(t *testing.T) {
	for name, code := range map[string]int{"FORMERR": dns.RcodeFormatError, "NOTIMP": dns.RcodeNotImplemented} {
		bubble(t, func(l *lab) {
			var opt *dns.OPT
			l.serve("a", lastOPT(&opt, script(func(q dnstest.Query) dnstest.Reply {
				r := rcode(code)(q)
				r.Msg.Extra = nil
				return r
			}, good)))
			c := l.client(off(), l.up("udp", "a"))
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r), "asked again without EDNS")
			assert.Nil(t, opt)
			l.withDO(c, "x.example.")
			require.NotNil(t, opt, "%s: DO is never dropped", name)
			assert.True(t, opt.Do())
			l.must(c, "x.example.")
			assert.Nil(t, opt, "it is remembered")
			time.Sleep(16 * time.Minute)
			l.must(c, "x.example.")
			assert.NotNil(t, opt, "for a quarter of an hour")
		})
	}
}

// A forwarder passes on the FORMERR of an authoritative server without EDNS. It concerns only the names of that server.
func TestClientKeepsEDNSAfterFORMERRForOneZone(t *testing.T) {
	bubble(t, func(l *lab) {
		var opt *dns.OPT
		l.serve("a", lastOPT(&opt, func(q dnstest.Query) dnstest.Reply {
			if dns.IsSubDomain("old.example.", q.Question[0].Name) && q.IsEdns0() != nil {
				return rcode(dns.RcodeFormatError)(q)
			}
			return good(q)
		}))
		c := l.client(off(), l.up("udp", "a"))
		for _, name := range []string{"x.example.", "a.old.example.", "b.old.example."} {
			r, _ := l.must(c, name)
			assert.Equal(t, "192.0.2.1", addr(r), name)
		}
		assert.Nil(t, opt, "asked again without EDNS")
		l.must(c, "y.example.")
		assert.NotNil(t, opt)
	})
}

func TestClientDropsEDNSOnlyWithProof(t *testing.T) {
	bubble(t, func(l *lab) {
		var opt *dns.OPT
		l.serve("a", lastOPT(&opt, script(rcode(dns.RcodeFormatError), rcode(dns.RcodeFormatError), good)))
		c := l.client(off(), l.up("udp", "a"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeFormatError, r.Rcode)
		l.must(c, "x.example.")
		assert.NotNil(t, opt)
	})
}

func TestClientKeepsEDNSAfterBadCallerOption(t *testing.T) {
	bubble(t, func(l *lab) {
		var opt *dns.OPT
		l.serve("a", lastOPT(&opt, func(q dnstest.Query) dnstest.Reply {
			for _, o := range q.IsEdns0().Option {
				if e, ok := o.(*dns.EDNS0_SUBNET); ok && e.SourceScope != 0 { // RFC 7871 §6
					return rcode(dns.RcodeFormatError)(q)
				}
			}
			return good(q)
		}))
		c := l.client(off(), l.up("tls", "a"))
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, SourceScope: 24, Address: net.IPv4(198, 51, 100, 0)}}
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeFormatError, r.Rcode)
		l.must(c, "victim.example.")
		assert.NotNil(t, opt)
	})
}

func TestClientTreatsExtendedRcodeAsFailure(t *testing.T) {
	for _, network := range []string{"udp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", rcode(dns.RcodeBadVers))
			l.serve("b", good)
			c := l.client(off(), l.up(network, "a"), l.up(network, "b"))
			r, took := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.Less(t, took, 200*ms, "the next server is asked at once")
			c = l.client(off(), l.up(network, "a"))
			r, err := l.edns(c, "x.example.")
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			assert.Equal(t, "server answered BADVERS", r.IsEdns0().Option[0].(*dns.EDNS0_EDE).ExtraText)
		})
	}
}

func TestClientPassesOptionsBothWays(t *testing.T) {
	bubble(t, func(l *lab) {
		var opt *dns.OPT
		l.serve("a", lastOPT(&opt, func(q dnstest.Query) dnstest.Reply {
			r := good(q)
			r.Msg.IsEdns0().Option = []dns.EDNS0{
				&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "aabb"},
				&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, SourceScope: 20, Address: net.IPv4(198, 51, 100, 0)},
			}
			return r
		}))
		c := l.client(off(), l.up("udp", "a"))
		c.Cache = new(dnshedge.Cache)
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"},
			&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(198, 51, 100, 0)},
		}
		for range 2 {
			opt = nil
			r, _, err := c.Exchange(m, "")
			require.NoError(t, err)
			require.NotNil(t, opt, "such answers are not kept")
			assert.Equal(t, []uint16{dns.EDNS0NSID, dns.EDNS0SUBNET}, codes(opt), "a cookie is between this client and the server")
			require.Equal(t, []uint16{dns.EDNS0NSID, dns.EDNS0SUBNET}, codes(r.IsEdns0()))
			assert.EqualValues(t, 20, r.IsEdns0().Option[1].(*dns.EDNS0_SUBNET).SourceScope)
		}

		r := serve(t, c, "udp", m)
		assert.Equal(t, []uint16{dns.EDNS0SUBNET}, codes(opt), "a forwarder passes on only the client's subnet")
		assert.Equal(t, []uint16{dns.EDNS0NSID, dns.EDNS0SUBNET}, codes(r.IsEdns0()))

		plain, err := l.edns(c, "x.example.")
		require.NoError(t, err)
		assert.Empty(t, plain.IsEdns0().Option, "the caller sent none")
	})
}

func TestServerAnswersUnknownEDNSVersionWithBADVERS(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().SetVersion(1)
		r := serve(t, c, "udp", m)
		assert.Equal(t, dns.RcodeBadVers, r.Rcode, "RFC 6891 §6.1.3")
		assert.Zero(t, r.IsEdns0().Version())
		_, _, err := c.Exchange(m, "")
		require.ErrorContains(t, err, "version of EDNS")

		m.IsEdns0().SetVersion(0)
		m.Extra = append(m.Extra, dns.Copy(m.IsEdns0()))
		assert.Equal(t, dns.RcodeFormatError, serve(t, c, "udp", m).Rcode, "two OPT records: RFC 6891 §6.1.1")
		assert.Zero(t, s.Queries.Load())
	})
}

func codes(opt *dns.OPT) (out []uint16) {
	for _, o := range opt.Option {
		out = append(out, o.Option())
	}
	return out
}

// RFC 7871 §7.1.1.
func TestServerRejectsMalformedClientSubnet(t *testing.T) {
	good4 := []byte{0, 1, 24, 0, 198, 51, 100}
	for name, options := range map[string][][]byte{
		"too short":                  {{0, 1, 24}},
		"a family that nobody knows": {{0, 3, 0, 0}},
		"no family, but a prefix":    {{0, 0, 8, 0, 10}},
		"prefix longer than address": {{0, 1, 33, 0, 1, 2, 3, 4, 0}},
		"address shorter":            {{0, 1, 24, 0, 198, 51}},
		"address longer":             {{0, 1, 24, 0, 198, 51, 100, 0}},
		"bits behind the prefix":     {{0, 2, 9, 0, 0x20, 0x41}},
		"a scope":                    {{0, 1, 24, 24, 198, 51, 100}},
		"60,000 bytes":               {make([]byte, 60000)},
		"two of them":                {good4, good4},
	} {
		bubble(t, func(l *lab) {
			s := l.serve("a", good)
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
			l.startServer(&dnshedge.Server{Client: c})
			m := question("x.example.", dns.TypeA)
			m.SetEdns0(1232, false)
			for _, data := range options {
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: dns.EDNS0SUBNET, Data: data})
			}
			conn := l.connect("tcp")
			assert.Equal(t, dns.RcodeFormatError, put(t, conn, m).Rcode, name)
			assert.Zero(t, s.Queries.Load(), name)
			m.IsEdns0().Option = m.IsEdns0().Option[:1]
			for _, data := range [][]byte{good4, {0, 0, 0, 0}, {0, 2, 9, 0, 0x20, 0x80}} {
				m.IsEdns0().Option[0] = &dns.EDNS0_LOCAL{Code: dns.EDNS0SUBNET, Data: data}
				assert.Equal(t, dns.RcodeSuccess, put(t, conn, m).Rcode, "% x", data)
			}
			assert.EqualValues(t, 3, s.Queries.Load(), "answers for one subnet are not kept")
		})
	}
}
