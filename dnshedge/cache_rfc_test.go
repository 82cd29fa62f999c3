package dnshedge_test

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// in answers as the handler that is current at the time.
func in(now *atomic.Pointer[dnstest.Handler], first dnstest.Handler) dnstest.Handler {
	now.Store(&first)
	return func(q dnstest.Query) dnstest.Reply { return (*now.Load())(q) }
}

func to(now *atomic.Pointer[dnstest.Handler], h dnstest.Handler) { now.Store(&h) }

func negative(code int, ttl uint32) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.Negative(q, code, ttl, ttl)}
	}
}

// askType is ask for any type.
func (l *lab) askType(c *dnshedge.Client, name string, typ uint16) *dns.Msg {
	l.Helper()
	r, _, err := c.Exchange(question(name, typ), "")
	require.NoError(l, err)
	return r
}

func TestCacheKeepsTypeZeroSeparate(t *testing.T) {
	for name, odd := range map[string]dnstest.Handler{
		"NODATA": negative(dns.RcodeSuccess, 3600), "NXDOMAIN": negative(dns.RcodeNameError, 3600), "FORMERR": rcode(dns.RcodeFormatError),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
					if q.Question[0].Qtype == dns.TypeA {
						return good(q)
					}
					return odd(q)
				})
				l.must(c, "x.example.")
				l.askType(c, "x.example.", 0)
				r, _ := l.must(c, "x.example.")
				assert.Len(t, r.Answer, 1)
				if name == "NXDOMAIN" {
					return // the response denies all types
				}
				l.askType(c, "y.example.", 0)
				r, _ = l.must(c, "y.example.")
				assert.Len(t, r.Answer, 1)
			})
		})
	}
}

func TestCacheDropsAnswerAfterUncacheableAnswer(t *testing.T) {
	for _, after := range []time.Duration{-1, 0} {
		for name, second := range map[string]dnstest.Handler{
			"TTL 0": with("0 A 192.0.2.2"), "NXDOMAIN without SOA": rcode(dns.RcodeNameError), "NODATA without SOA": rcode(dns.RcodeSuccess),
		} {
			t.Run(fmt.Sprint(name, after), func(t *testing.T) {
				bubble(t, func(l *lab) {
					var now atomic.Pointer[dnstest.Handler]
					c, _ := cached(l, &dnshedge.Cache{StaleAfter: after}, in(&now, with("10 A 192.0.2.1")))
					l.must(c, "x.example.")
					to(&now, second)
					time.Sleep(11 * time.Second)
					l.must(c, "x.example.")
					time.Sleep(time.Second)
					r, _ := l.must(c, "x.example.")
					assert.NotEqual(t, "192.0.2.1", addr(r))
					to(&now, drop)
					_, _, err := l.ask(c, "x.example.")
					require.Error(t, err, "there is nothing to give")
				})
			})
		}
	}
}

func TestCacheRetriesFailedRefresh(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		c, _ := cached(l, &dnshedge.Cache{StaleAfter: -1}, in(&now, with("10 A 192.0.2.1")))
		l.must(c, "x.example.")
		to(&now, rcode(dns.RcodeServerFailure))
		time.Sleep(11 * time.Second)
		l.must(c, "x.example.")
		time.Sleep(time.Second)
		to(&now, with("10 A 192.0.2.2"))
		time.Sleep(30 * time.Second)
		l.must(c, "x.example.")
		time.Sleep(time.Second)
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
	})
}

func TestCacheReplacesExpiredAnswerByFinalFailure(t *testing.T) {
	for name, first := range map[string]dnstest.Handler{"positive": with("10 A 192.0.2.1"), "NXDOMAIN": negative(dns.RcodeNameError, 10)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				var now atomic.Pointer[dnstest.Handler]
				c, _ := cached(l, &dnshedge.Cache{StaleAfter: -1}, in(&now, first))
				l.must(c, "x.example.")
				to(&now, func(q dnstest.Query) dnstest.Reply {
					return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), dns.ExtendedErrorCodeDNSBogus)}
				})
				time.Sleep(11 * time.Second)
				l.must(c, "x.example.")
				time.Sleep(time.Second / 2)
				r, err := l.edns(c, "x.example.")
				require.NoError(t, err)
				assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
				assert.Equal(t, []uint16{6, 13}, edes(r), "and the failure is a cached one")
				time.Sleep(time.Minute)
				r, _ = l.must(c, "x.example.")
				assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			})
		})
	}
}

func TestClientAlwaysRequestsValidationStatus(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			r := good(q)
			r.Msg.AuthenticatedData = q.AuthenticatedData // RFC 6840 §5.8
			return r
		})
		r, _ := l.must(c, "x.example.")
		assert.False(t, r.AuthenticatedData)
		m := question("x.example.", dns.TypeA)
		m.AuthenticatedData = true
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		assert.True(t, r.AuthenticatedData)
	})
}

func TestCacheClearsADOfStaleAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		c, _ := cached(l, &dnshedge.Cache{StaleAfter: -1}, in(&now, func(q dnstest.Query) dnstest.Reply {
			r := with("60 A 192.0.2.1")(q)
			r.Msg.AuthenticatedData = true
			return r
		}))
		l.must(c, "x.example.")
		to(&now, drop)
		time.Sleep(time.Hour)
		m := question("x.example.", dns.TypeA)
		m.AuthenticatedData = true
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		require.Len(t, r.Answer, 1)
		assert.False(t, r.AuthenticatedData)
	})
}

func TestCachePrefersFreshNXDOMAINToExpiredAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		c, s := cached(l, new(dnshedge.Cache), in(&now, with("60 A 192.0.2.1")))
		l.must(c, "x.example.")
		time.Sleep(2 * time.Minute)
		to(&now, negative(dns.RcodeNameError, 600))
		l.askType(c, "x.example.", dns.TypeAAAA)
		to(&now, drop)
		n := s.Queries.Load()
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		assert.Equal(t, n, s.Queries.Load())
		time.Sleep(11 * time.Minute)
		c.Timeout = time.Second
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode, "of two expired ones the newer is given")
	})
}

func TestCacheDropsNXDOMAINAfterNewAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		c, _ := cached(l, &dnshedge.Cache{StaleAfter: -1}, in(&now, negative(dns.RcodeNameError, 5)))
		l.must(c, "x.example.")
		time.Sleep(10 * time.Second)
		to(&now, func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Qtype == dns.TypeA {
				return with("600 A 192.0.2.1")(q)
			}
			return negative(dns.RcodeSuccess, 600)(q)
		})
		l.must(c, "x.example.")
		time.Sleep(time.Second)
		r := l.askType(c, "x.example.", dns.TypeAAAA)
		assert.Equal(t, dns.RcodeSuccess, r.Rcode, "the name exists now, for all types")
	})
}

func TestCacheFailureReplacesNoServedAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		c, s := cached(l, new(dnshedge.Cache), in(&now, negative(dns.RcodeNameError, 60)))
		l.askType(c, "x.example.", dns.TypeAAAA)
		time.Sleep(2 * time.Minute)
		to(&now, with("600 A 192.0.2.1"))
		l.must(c, "x.example.")
		time.Sleep(15 * time.Minute)
		to(&now, rcode(dns.RcodeServerFailure))
		n := s.Queries.Load()
		for range 100 {
			r, _ := l.must(c, "x.example.")
			require.Equal(t, "192.0.2.1", addr(r))
		}
		assert.Equal(t, n+1, s.Queries.Load(), "RFC 8767 §5: a recheck every 30 s")
	})
}

// validated sets the AD bit of the responses of h.
func validated(h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		r := h(q)
		r.Msg.AuthenticatedData = true
		return r
	}
}

// RFC 8020.
func TestCacheDeniesNamesBelowValidatedNXDOMAIN(t *testing.T) {
	bubble(t, func(l *lab) {
		var now atomic.Pointer[dnstest.Handler]
		s := l.serve("a", in(&now, validated(negative(dns.RcodeNameError, 600))))
		up := l.up("udp", "a")
		up.TrustAD = true
		c := off()
		c.Cache = new(dnshedge.Cache)
		c = l.client(c, up)
		l.must(c, "Gone.example.")
		time.Sleep(100 * time.Second)
		for i := range 100 {
			m := question(fmt.Sprintf("R%d.a.gone.example.", i), dns.TypeAAAA)
			r, _, err := c.Exchange(m, "")
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeNameError, r.Rcode)
			assert.Equal(t, m.Question, r.Question)
			require.Len(t, r.Ns, 1)
			assert.Equal(t, "example.", r.Ns[0].Header().Name)
			assert.EqualValues(t, 500, r.Ns[0].Header().Ttl)
		}
		assert.EqualValues(t, 1, s.Queries.Load())
		l.must(c, "xgone.example.")
		assert.EqualValues(t, 2, s.Queries.Load(), "it is beside it")
		time.Sleep(501 * time.Second)
		to(&now, good)
		r, _ := l.must(c, "a.gone.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		to(&now, rcode(dns.RcodeServerFailure))
		r, _ = l.must(c, "gone.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode, "what is above a name that exists exists, and is not given as stale")
	})
}

// A server has the zone ad.corp. and forwards questions about corp. to public servers. Its denials are not validated.
func TestClientAsksForNamesBelowUnvalidatedNXDOMAIN(t *testing.T) {
	says := func(h dnstest.Handler) dnstest.Handler {
		return func(q dnstest.Query) dnstest.Reply {
			if strings.HasSuffix(q.Question[0].Name, ".ad.corp.example.") {
				return good(q)
			}
			return h(q)
		}
	}
	for name, proof := range map[string]struct{ trusted, ad bool }{"no proof": {true, false}, "not trusted": {false, true}, "neither": {false, false}} {
		bubble(t, func(l *lab) {
			gone := negative(dns.RcodeNameError, 3600)
			if proof.ad {
				gone = validated(gone)
			}
			l.serve("a", says(gone))
			up := l.up("udp", "a")
			up.TrustAD = proof.trusted
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, up)
			l.askType(c, "corp.example.", dns.TypeSOA)
			l.askType(c, "ad.corp.example.", dns.TypeSOA)
			r, _ := l.must(c, "db.ad.corp.example.")
			assert.Equal(t, "192.0.2.1", addr(r), name)
		})
	}
	bubbleOnly(t, func(t *testing.T) {
		c := &dnshedge.Client{Cache: new(dnshedge.Cache), Exchanger: exchangeFunc(func(m *dns.Msg) *dns.Msg {
			return validated(says(negative(dns.RcodeNameError, 3600)))(dnstest.Query{Msg: m}).Msg
		})}
		defer c.Close()
		for _, name := range []string{"corp.example.", "db.ad.corp.example."} {
			r, _, err := c.Exchange(question(name, dns.TypeA), "")
			require.NoError(t, err)
			assert.Equal(t, name != "corp.example.", r.Rcode == dns.RcodeSuccess, "an Exchanger that proves nothing: %s", name)
		}
	})
}

func TestCacheStoresAliasWithoutTargetAsExisting(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			r := negative(dns.RcodeNameError, 600)(q)
			rr, err := dnstest.RR("x.example.", "600 CNAME y.example.")
			require.NoError(t, err)
			r.Msg.Answer = append(r.Msg.Answer, rr)
			return r
		})
		l.must(c, "x.example.")
		l.must(c, "a.x.example.")
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

func TestCacheMinTTLRaisesNoNegativeTTL(t *testing.T) {
	bubbleOnly(t, func(t *testing.T) {
		c := dnshedge.Cache{MinTTL: time.Minute, MaxStale: -1}
		q := dnstest.Query{Msg: question("x.example.", dns.TypeA)}
		require.True(t, c.Set(dnstest.Negative(q, dns.RcodeNameError, 2, 300)))
		time.Sleep(3 * time.Second)
		_, ok := c.Get(q.Msg)
		assert.False(t, ok)
	})
}

func TestCacheIgnoresSOAOfOtherZone(t *testing.T) {
	var c dnshedge.Cache
	assert.False(t, c.Set(dnstest.Negative(dnstest.Query{Msg: question("www.bank.test.", dns.TypeA)}, dns.RcodeNameError, 3600, 3600)))
	m := dnstest.Negative(dnstest.Query{Msg: question("www.bank.test.", dns.TypeA)}, dns.RcodeNameError, 3600, 3600)
	rr, err := dnstest.RR("WWW.bank.test.", "600 CNAME y.example.")
	require.NoError(t, err)
	m.Answer = append(m.Answer, rr)
	assert.True(t, c.Set(m), "the SOA is that of the zone where the aliases end")
}

func TestCacheLimitsSignatureTTLToCoveredRecords(t *testing.T) {
	var c dnshedge.Cache
	m := question("x.example.", dns.TypeA)
	m.SetEdns0(1232, true)
	const sig = " 8 2 300 20300101000000 20200101000000 1 example. AAAA"
	r := dnstest.Answer(dnstest.Query{Msg: m}, "300 A 192.0.2.1", "200 RRSIG A"+sig)
	for _, s := range []string{"60 NSEC y.example. A", "50 RRSIG NSEC" + sig} {
		rr, err := dnstest.RR("x.example.", s)
		require.NoError(t, err)
		r.Ns = append(r.Ns, rr)
	}
	require.True(t, c.Set(r))
	got, ok := c.Get(m)
	require.True(t, ok)
	for i, rr := range append(got.Answer, got.Ns...) {
		want := []uint32{199, 199, 49, 49}[i]
		assert.InDelta(t, want, rr.Header().Ttl, 1, rr)
	}
}

// RFC 8484 §5.1, RFC 2308 §5.
func TestCacheSubtractsHTTPAgeFromNegativeTTL(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 3600, 300), Header: map[string][]string{"Age": {"290"}}}
		})
		c := off()
		c.Cache = &dnshedge.Cache{MaxStale: -1}
		l.client(c, l.up("https", "a"))
		r, _ := l.must(c, "x.example.")
		assert.EqualValues(t, 10, r.Ns[0].Header().Ttl)
		time.Sleep(11 * time.Second)
		l.must(c, "x.example.")
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

func TestClientTreatsTruncatedStreamAnswerAsFailure(t *testing.T) {
	cut := func(q dnstest.Query) dnstest.Reply {
		r := good(q)
		r.Msg.Truncated = true
		return r
	}
	for _, network := range []string{"tcp", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", cut)
			l.serve("b", with("A 192.0.2.2"))
			r, _ := l.must(l.client(off(), l.up(network, "a")), "x.example.")
			assert.True(t, r.Truncated, "half an answer is not passed off as a whole one")
			r, _ = l.must(l.client(off(), l.up(network, "a"), l.up(network, "b")), "x.example.")
			assert.Equal(t, "192.0.2.2", addr(r), "another server is asked")
			assert.False(t, r.Truncated)
		})
	}
}

func TestCacheRotatesAddresses(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with(
			"600 CNAME y.example.", "y.example. 600 A 192.0.2.1", "y.example. 600 A 192.0.2.2", "y.example. 600 A 192.0.2.3"))
		first := map[string]int{}
		for range 99 {
			r, _ := l.must(c, "x.example.")
			first[addr(r)]++
			all := map[string]bool{}
			require.Len(t, r.Answer, 4)
			assert.IsType(t, new(dns.CNAME), r.Answer[0])
			for _, rr := range r.Answer[1:] {
				all[rr.(*dns.A).A.String()] = true
			}
			assert.Len(t, all, 3)
		}
		assert.Equal(t, map[string]int{"192.0.2.1": 33, "192.0.2.2": 33, "192.0.2.3": 33}, first)
		assert.EqualValues(t, 1, s.Queries.Load())
		w := &recorder{remote: &net.UDPAddr{}}
		wire := map[string]bool{}
		for range 3 {
			c.ServeDNS(w, question("x.example.", dns.TypeA))
			r := new(dns.Msg)
			require.NoError(t, r.Unpack(w.wire))
			wire[addr(r)] = true
		}
		assert.Len(t, wire, 3, "through the forwarder as well")
	})
}

func TestCacheKeepsAddressesOfNamesSeparate(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), with("600 CNAME y.example.", "y.example. 600 A 192.0.2.1", "z.example. 600 A 192.0.2.2"))
		for range 4 {
			r, _ := l.must(c, "x.example.")
			for _, rr := range r.Answer {
				if a, ok := rr.(*dns.A); ok {
					assert.Equal(t, map[string]string{"y.example.": "192.0.2.1", "z.example.": "192.0.2.2"}[a.Hdr.Name], a.A.String())
				}
			}
		}
	})
}
