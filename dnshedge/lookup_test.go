package dnshedge_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

func TestLookupAddrsReturnsTTLs(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			v6 := q.Question[0].Qtype == dns.TypeAAAA
			switch q.Question[0].Name {
			case "both.example.":
				if v6 {
					return dnstest.Reply{Msg: dnstest.Answer(q, "90 AAAA 2001:db8::1")}
				}
				return dnstest.Reply{Msg: dnstest.Answer(q, "60 A 192.0.2.1")}
			case "alias.example.":
				if v6 {
					return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
				}
				return dnstest.Reply{Msg: dnstest.Answer(q, "20 CNAME Y.example.", "y.EXAMPLE. 60 A 192.0.2.2", "z.example. 60 A 203.0.113.9")}
			case "loop.example.":
				return dnstest.Reply{Msg: dnstest.Answer(q, "20 CNAME loop.example.")}
			}
			return zone(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		for name, want := range map[string][]dnshedge.AddrTTL{
			"both.example":   {{netip.MustParseAddr("192.0.2.1"), time.Minute}, {netip.MustParseAddr("2001:db8::1"), 90 * time.Second}},
			"alias.example.": {{netip.MustParseAddr("192.0.2.2"), 20 * time.Second}},
			"2001:db8::7":    {{netip.MustParseAddr("2001:db8::7"), 0}},
		} {
			got, err := c.LookupAddrs(background, name)
			require.NoError(t, err, name)
			assert.Equal(t, want, got, name)
		}
		for name, check := range map[string]func(e *net.DNSError) bool{
			"nx.example":            func(e *net.DNSError) bool { return e.IsNotFound && !e.IsTemporary },
			"mx.example":            func(e *net.DNSError) bool { return e.IsNotFound },
			"loop.example":          func(e *net.DNSError) bool { return e.IsNotFound },
			"broken.example":        func(e *net.DNSError) bool { return e.IsTemporary && !e.IsNotFound },
			strings.Repeat("x", 99): func(e *net.DNSError) bool { return e.IsNotFound },
		} {
			_, err := c.LookupAddrs(background, name)
			var e *net.DNSError
			require.ErrorAs(t, err, &e, name)
			assert.Equal(t, name, e.Name)
			assert.True(t, check(e), "%s: %#v", name, e)
		}
	})
}

// A program may give up after an error that is neither temporary nor a timeout. net.Resolver marks network errors as
// temporary too.
func TestLookupAddrsNetworkErrorsAreTemporary(t *testing.T) {
	bubble(t, func(l *lab) {
		c := &dnshedge.Client{Exchanger: &exchanger{err: &net.OpError{Op: "dial", Err: errors.New("network is unreachable")}}}
		defer c.Close()
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		_, err := c.LookupAddrs(ctx, "x.example")
		var ours, gos *net.DNSError
		require.ErrorAs(t, err, &ours)
		_, err = c.Resolver().LookupNetIP(ctx, "ip", "x.example")
		require.ErrorAs(t, err, &gos)
		assert.Equal(t, gos.IsTemporary, ours.IsTemporary)
		assert.Equal(t, gos.IsTimeout, ours.IsTimeout)
		assert.Equal(t, gos.IsNotFound, ours.IsNotFound)
		assert.True(t, ours.IsTemporary)
		cancel()
		for range 100 { // the network error and the context's error may come in either order
			_, err = c.LookupAddrs(ctx, "x.example")
			require.ErrorAs(t, err, &ours)
			require.False(t, ours.IsTemporary)
		}
	})
}

// RFC 8305 §3.
func TestLookupAddrsDoesNotWaitForLostAAAA(t *testing.T) {
	for _, lost := range []uint16{dns.TypeA, dns.TypeAAAA} {
		bubble(t, func(l *lab) {
			c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Qtype == lost {
					return dnstest.Reply{}
				}
				return zone(q)
			})
			start := time.Now()
			got, err := c.LookupAddrs(background, "a.example.")
			require.NoError(t, err)
			assert.NotEmpty(t, got)
			assert.Equal(t, 70*ms, time.Since(start), "20 ms for the answer and 50 ms for the other")
			start = time.Now()
			_, err = c.LookupAddrs(background, "nx.example.")
			require.Error(t, err)
			assert.Greater(t, time.Since(start), time.Second, "what is not there does not hasten anything")
		})
	}
}

func TestWarmConnectsAndLooksUp(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		l.serve("b", good)
		c := &dnshedge.Client{Cache: new(dnshedge.Cache), Fallback: []dnshedge.Upstream{l.up("https", "b")}}
		l.client(c, l.up("tls", "a"))
		require.NoError(t, c.Warm(background, "x.example"))
		_, took := l.must(c, "x.example.")
		assert.Zero(t, took)
		_, took = l.must(c, "y.example.")
		assert.Equal(t, 20*ms, took)
		assert.EqualValues(t, 1, s.Conns.Load())
		for _, u := range c.Stats().Upstreams {
			assert.Equal(t, 20*ms, u.SRTT)
			assert.Equal(t, 40*ms, u.Handshake)
		}
		l.link("a", netsim.Profile{BlackHole: true})
		err := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b")).Warm(background)
		require.ErrorContains(t, err, "upstream udp://10.77.0.2:53")
		assert.NotContains(t, err.Error(), "10.77.0.3")
	})
}

func TestLookupAddrsRejectsInvalidHostName(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		for _, host := range []string{"", ".", "a..b", "bad host", "m\x00x.example", "a@b.example", "192.0.2.1\n.example", `a\.b.example`, "b\u00fccher.example"} {
			var not *net.DNSError
			_, err := c.LookupAddrs(background, host)
			require.ErrorAs(t, err, &not, "%q", host)
			assert.True(t, not.IsNotFound, "%q", host)
			_, err = c.LookupHTTPS(background, host, 0)
			require.ErrorAs(t, err, &not, "%q", host)
			assert.True(t, not.IsNotFound, "%q", host)
		}
		assert.Zero(t, s.Queries.Load())
		for _, host := range []string{"_srv.x-y.example", "X.example.", "1.example"} {
			_, err := c.LookupAddrs(background, host)
			assert.NoError(t, err, host)
		}
	})
}
