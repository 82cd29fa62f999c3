package dnshedge_test

import (
	"context"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// asks sends c a question for a name and type, and returns the number of queries to servers.
func asks(l *lab, c *dnshedge.Client, name string, typ uint16) (*dns.Msg, int64) {
	l.Helper()
	before := c.Stats().Wire
	r, _, err := c.Exchange(question(name, typ), "")
	require.NoError(l, err, name)
	return r, c.Stats().Wire - before
}

func TestSpecialUseNamesAreNotSent(t *testing.T) {
	const library, forwarder = dnshedge.SpecialUseLibrary, dnshedge.SpecialUseForwarder
	bubble(t, func(l *lab) {
		l.serve("a", good)
		for _, row := range []struct {
			name string
			who  dnshedge.SpecialUse // this value and all higher values answer the name
			soa  string
		}{
			{"foo.invalid.", library, "invalid."},
			{"FOO.Invalid.", library, "invalid."},
			{"www.abcdefgh.onion.", library, "onion."},
			{"x.alt.", library, "alt."},
			{"x.test.", forwarder, "test."},
			{"printer.local.", forwarder, "local."},
			{"_ipp._tcp.local.", forwarder, "local."},
			{"3.2.1.10.in-addr.arpa.", forwarder, "10.in-addr.arpa."},
			{"1.0.16.172.in-addr.arpa.", forwarder, "16.172.in-addr.arpa."},
			{"1.0.31.172.in-addr.arpa.", forwarder, "31.172.in-addr.arpa."},
			{"1.0.168.192.in-addr.arpa.", forwarder, "168.192.in-addr.arpa."},
			{"1.0.254.169.in-addr.arpa.", forwarder, "254.169.in-addr.arpa."},
			{"9.0.0.127.in-addr.arpa.", forwarder, "127.in-addr.arpa."},
			{"1.1.1.0.in-addr.arpa.", forwarder, "0.in-addr.arpa."},
			{"7.2.0.192.in-addr.arpa.", forwarder, "2.0.192.in-addr.arpa."},
			{"7.100.51.198.in-addr.arpa.", forwarder, "100.51.198.in-addr.arpa."},
			{"7.113.0.203.in-addr.arpa.", forwarder, "113.0.203.in-addr.arpa."},
			{"1.0.64.100.in-addr.arpa.", forwarder, "64.100.in-addr.arpa."},
			{"1.0.127.100.in-addr.arpa.", forwarder, "127.100.in-addr.arpa."},
			{"1.0.d.f.ip6.arpa.", forwarder, "d.f.ip6.arpa."},
			{"1.0.8.e.f.ip6.arpa.", forwarder, "8.e.f.ip6.arpa."},
			{"1.0.B.E.F.ip6.arpa.", forwarder, "b.e.f.ip6.arpa."},
			{"1.0.8.b.d.0.1.0.0.2.ip6.arpa.", forwarder, "8.b.d.0.1.0.0.2.ip6.arpa."},
			{"host.home.arpa.", forwarder, "home.arpa."},
			{"x.service.arpa.", forwarder, "service.arpa."},

			{"example.", dnshedge.SpecialUseOff, ""},
			{"invalid.example.", dnshedge.SpecialUseOff, ""},
			{"xlocalhost.", dnshedge.SpecialUseOff, ""},
			{"1.0.32.172.in-addr.arpa.", dnshedge.SpecialUseOff, ""},
			{"1.0.128.100.in-addr.arpa.", dnshedge.SpecialUseOff, ""},
			{"ipv4only.arpa.", dnshedge.SpecialUseOff, ""}, // RFC 8880: must be forwarded
			{"arpa.", dnshedge.SpecialUseOff, ""},
			{".", dnshedge.SpecialUseOff, ""},
		} {
			for _, mode := range []dnshedge.SpecialUse{library, forwarder, dnshedge.SpecialUseOff} {
				c := l.client(&dnshedge.Client{SpecialUse: mode}, l.up("udp", "a"))
				r, queries := asks(l, c, row.name, dns.TypeTXT)
				if mode < row.who || mode == dnshedge.SpecialUseOff {
					assert.EqualValues(t, 1, queries, "%s, mode %d", row.name, mode)
					continue
				}
				assert.Zero(t, queries, "%s left, mode %d", row.name, mode)
				assert.Equal(t, dns.RcodeNameError, r.Rcode, row.name)
				assert.Equal(t, row.name, r.Question[0].Name)
				assert.True(t, r.RecursionAvailable)
				if assert.Len(t, r.Ns, 1) {
					soa := r.Ns[0].(*dns.SOA)
					assert.Equal(t, row.soa, soa.Hdr.Name)
					assert.EqualValues(t, 10800, soa.Hdr.Ttl)
					assert.EqualValues(t, 10800, soa.Minttl)
				}
				assert.EqualValues(t, 1, c.Stats().Local)
			}
		}
	})
}

func TestSpecialUseLocalhostIsLoopback(t *testing.T) {
	bubble(t, func(l *lab) {
		c := l.client(&dnshedge.Client{}, l.up("udp", "a")) // no server listens there
		for _, name := range []string{"localhost.", "LocalHost.", "a.b.localhost.", `odd\ \"name.localhost.`} {
			r, _ := asks(l, c, name, dns.TypeA)
			require.Len(t, r.Answer, 1, name)
			assert.Equal(t, "127.0.0.1", addr(r))
			assert.Equal(t, name, r.Answer[0].Header().Name)
			r, _ = asks(l, c, name, dns.TypeAAAA)
			require.Len(t, r.Answer, 1, name)
			assert.Equal(t, "::1", r.Answer[0].(*dns.AAAA).AAAA.String())
			r, _ = asks(l, c, name, dns.TypeMX)
			assert.Equal(t, dns.RcodeSuccess, r.Rcode)
			assert.Empty(t, r.Answer)
			assert.Len(t, r.Ns, 1)
		}
		addrs, err := c.LookupAddrs(background, "localhost")
		require.NoError(t, err)
		assert.Len(t, addrs, 2)
	})
}

func TestSpecialUseZonesHaveApexRecords(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", rcode(dns.RcodeRefused))
		c := l.client(&dnshedge.Client{SpecialUse: dnshedge.SpecialUseForwarder}, l.up("udp", "a"))
		for _, row := range []struct {
			name   string
			typ    uint16
			rcode  int
			answer string // the last field of the only record; empty: none, but an SOA
		}{
			{"10.in-addr.arpa.", dns.TypeSOA, dns.RcodeSuccess, "10800"},
			{"10.in-addr.arpa.", dns.TypeNS, dns.RcodeSuccess, "10.in-addr.arpa."},
			{"10.in-addr.arpa.", dns.TypeA, dns.RcodeSuccess, ""},
			{"resolver.arpa.", dns.TypeSVCB, dns.RcodeSuccess, ""},
			{"_dns.resolver.arpa.", dns.TypeSVCB, dns.RcodeSuccess, ""},
			{"x.resolver.arpa.", dns.TypeA, dns.RcodeSuccess, ""},
			{"x.service.arpa.", dns.TypeA, dns.RcodeNameError, ""},
			{"onion.", dns.TypeA, dns.RcodeSuccess, ""},
			{"1.0.0.127.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, "localhost."},
			{"1.0.0.127.in-addr.arpa.", dns.TypeA, dns.RcodeSuccess, ""},
			{"0.127.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, ""}, // an empty non-terminal
			{"1.127.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
			{reverse(l, "::1"), dns.TypePTR, dns.RcodeSuccess, "localhost."},
			{reverse(l, "::"), dns.TypePTR, dns.RcodeSuccess, ""},
		} {
			r, queries := asks(l, c, row.name, row.typ)
			assert.Zero(t, queries, row.name)
			assert.Equal(t, row.rcode, r.Rcode, row.name)
			if row.answer == "" {
				assert.Empty(t, r.Answer, row.name)
				assert.Len(t, r.Ns, 1, row.name)
			} else if assert.Len(t, r.Answer, 1, row.name) {
				s := r.Answer[0].String()
				assert.Equal(t, row.answer, s[len(s)-len(row.answer):])
			}
		}

		// Only the parent zone has the proof that these zones are unsigned.
		_, queries := asks(l, c, "home.arpa.", dns.TypeDS)
		assert.EqualValues(t, 1, queries)
		_, queries = asks(l, c, "x.home.arpa.", dns.TypeDS)
		assert.Zero(t, queries)
		_, queries = asks(l, c, "onion.", dns.TypeDS)
		assert.Zero(t, queries)

		r := serve(t, c, "udp", question("PRINTER.local.", dns.TypeA))
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		assert.False(t, r.Authoritative)
		assert.Equal(t, "PRINTER.local.", r.Question[0].Name)
	})
}

func reverse(l *lab, ip string) string {
	name, err := dns.ReverseAddr(ip)
	require.NoError(l, err)
	return name
}

func TestSpecialUseNamesAreSentToGivenAddress(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(&dnshedge.Client{SpecialUse: dnshedge.SpecialUseForwarder})
		_, _, err := c.Exchange(question("x.test.", dns.TypeA), l.net.Host("a").Addr().String())
		require.NoError(t, err)
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}

func TestRouteOverridesSpecialUse(t *testing.T) {
	bubble(t, func(l *lab) {
		a := l.serve("a", with("A 10.0.0.1"))
		b := l.serve("b", with("A 10.0.0.2"))
		c := l.client(&dnshedge.Client{
			SpecialUse: dnshedge.SpecialUseForwarder, RebindFilter: new(dnshedge.RebindFilter),
			Routes: map[string]dnshedge.Exchanger{
				"home.arpa":       l.client(new(dnshedge.Client), l.up("udp", "b")),
				"10.in-addr.arpa": nil, // as other names
				".":               nil,
			},
		}, l.up("udp", "a"))
		r, _ := l.must(c, "printer.home.arpa.")
		assert.Equal(t, "10.0.0.2", addr(r), "a private address is what such a server is for")
		assert.EqualValues(t, 1, b.Queries.Load())
		_, queries := asks(l, c, "1.0.0.10.in-addr.arpa.", dns.TypePTR)
		assert.EqualValues(t, 1, queries)
		assert.EqualValues(t, 1, a.Queries.Load())
		_, queries = asks(l, c, "printer.local.", dns.TypeA)
		assert.Zero(t, queries)
		r, _ = l.must(c, "x.example.")
		assert.Empty(t, r.Answer)
	})
}

func TestCacheNXDOMAINDoesNotHideRouteBelow(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 300)}
		})
		l.serve("b", good)
		c := l.client(&dnshedge.Client{
			Cache:  new(dnshedge.Cache),
			Hosts:  hostsFile(t, "192.0.2.7 printer.example"),
			Routes: map[string]dnshedge.Exchanger{"inside.example": l.client(new(dnshedge.Client), l.up("udp", "b"))},
		}, l.up("udp", "a"))
		r, _ := l.must(c, "example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		for _, name := range []string{"x.inside.example.", "inside.example."} {
			r, _ = l.must(c, name)
			assert.Equal(t, "192.0.2.1", addr(r), name)
			r = serve(t, c, "udp", question(name, dns.TypeA))
			assert.Equal(t, "192.0.2.1", addr(r), name)
		}
		r = serve(t, c, "udp", question("printer.example.", dns.TypeA))
		assert.Equal(t, "192.0.2.7", addr(r))
	})
}

func TestTraceReceivesLocalAnswers(t *testing.T) {
	var got []dnshedge.AnswerInfo
	c := &dnshedge.Client{Trace: &dnshedge.Trace{Answer: func(_ context.Context, i dnshedge.AnswerInfo) { got = append(got, i) }}}
	defer c.Close()
	_, _, err := c.Exchange(question("x.onion.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Equal(t, []dnshedge.AnswerInfo{{Name: "x.onion.", Type: dns.TypeA, Source: dnshedge.FromLocal}}, got)
}

func TestSpecialUseRejectsInvalidValue(t *testing.T) {
	c := &dnshedge.Client{SpecialUse: 7}
	_, _, err := c.Exchange(question("x.", dns.TypeA), "")
	assert.EqualError(t, err, "dnshedge: Client.SpecialUse is 7; want SpecialUseLibrary, SpecialUseForwarder or SpecialUseOff")
}

func TestCacheStoresFailureOfRouteBelowNXDOMAIN(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 300)}
		})
		dead := l.serve("b", rcode(dns.RcodeServerFailure))
		c := l.client(&dnshedge.Client{
			Cache:  new(dnshedge.Cache),
			Routes: map[string]dnshedge.Exchanger{"inside.example": l.client(off(), l.up("udp", "b"))},
		}, l.up("udp", "a"))
		l.must(c, "example.")
		_, _, _ = c.Exchange(question("x.inside.example.", dns.TypeA), "")
		asked := dead.Queries.Load()
		require.Positive(t, asked)
		_, _, _ = c.Exchange(question("x.inside.example.", dns.TypeA), "")
		assert.Equal(t, asked, dead.Queries.Load(), "RFC 9520")
	})
}
