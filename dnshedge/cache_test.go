package dnshedge_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// cached holds a Client with a cache and without hedges, and its server.
func cached(l *lab, cache *dnshedge.Cache, h dnstest.Handler) (*dnshedge.Client, *dnstest.Server) {
	s := l.serve("a", h)
	c := off()
	c.Cache = cache
	return l.client(c, l.up("udp", "a")), s
}

func TestCacheCountsTTLsDown(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with("300 A 192.0.2.1"))
		r, _ := l.must(c, "x.example.")
		assert.EqualValues(t, 300, ttl(r))
		time.Sleep(100 * time.Second)
		r, took := l.must(c, "x.example.")
		assert.Zero(t, took)
		assert.EqualValues(t, 200, ttl(r))
		time.Sleep(199*time.Second + 999*ms)
		r, _ = l.must(c, "x.example.")
		assert.EqualValues(t, 1, ttl(r), "rounded down, but not to nothing")
		assert.EqualValues(t, 1, s.Queries.Load())
		st := c.Stats()
		assert.EqualValues(t, 2, st.Hits)
	})
}

func TestCacheKeyIsNameTypeClassDOAndCD(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), good)
		ask := func(change func(m *dns.Msg)) {
			m := question("x.example.", dns.TypeA)
			change(m)
			_, _, err := c.Exchange(m, "")
			require.NoError(t, err)
		}
		same := map[string]func(m *dns.Msg){
			"plain":    func(*dns.Msg) {},
			"spelling": func(m *dns.Msg) { m.Question[0].Name = "X.eXample." },
			"ID":       func(m *dns.Msg) { m.Id++ },
			"EDNS":     func(m *dns.Msg) { m.SetEdns0(4096, false) },
			"AD":       func(m *dns.Msg) { m.AuthenticatedData = true },
		}
		ask(same["plain"])
		for range 2 {
			for name, change := range same {
				ask(change)
				require.EqualValues(t, 1, s.Queries.Load(), name)
			}
		}
		other := map[string]func(m *dns.Msg){
			"name":           func(m *dns.Msg) { m.Question[0].Name = "y.example." },
			"type":           func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT },
			"type high byte": func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeA + 256 },
			"DO":             func(m *dns.Msg) { m.SetEdns0(4096, true) },
			"CD":             func(m *dns.Msg) { m.CheckingDisabled = true },
			"class":          func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		}
		n := int64(1)
		for name, change := range other {
			ask(change)
			n++
			require.Equal(t, n, s.Queries.Load(), name)
		}
	})
}

func TestCacheStoresNoTruncatedAnswer(t *testing.T) {
	var c dnshedge.Cache
	m := dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1")
	m.Truncated = true
	assert.False(t, c.Set(m))
	m.Truncated = false
	assert.True(t, c.Set(m))
	assert.Equal(t, 1, c.Len())
}

func TestCacheKeepsTTLOfEachRRset(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with(
			"x.example. 600 CNAME y.example.", "y.example. 120 A 192.0.2.1", "y.example. 60 A 192.0.2.2"))
		l.must(c, "x.example.")
		time.Sleep(50 * time.Second)
		r, _ := l.must(c, "x.example.")
		var got []uint32
		for _, rr := range r.Answer {
			got = append(got, rr.Header().Ttl)
		}
		assert.Equal(t, []uint32{550, 10, 10}, got, "within a set the lowest counts, RFC 2181 §5.2")
		time.Sleep(11 * time.Second)
		l.must(c, "x.example.")
		assert.EqualValues(t, 2, s.Queries.Load(), "the first to expire takes the answer along")
	})
}

func TestCacheLimitsTTLs(t *testing.T) {
	for name, tc := range map[string]struct {
		cache     *dnshedge.Cache
		ttl, want uint32
	}{
		"a day at most": {new(dnshedge.Cache), 1 << 30, 86400},
		"high bit":      {new(dnshedge.Cache), 1<<32 - 1, 86400}, // RFC 8767 §4
		"MaxTTL":        {&dnshedge.Cache{MaxTTL: time.Minute}, 300, 60},
		"MinTTL":        {&dnshedge.Cache{MinTTL: time.Minute}, 5, 60},
		"neither":       {&dnshedge.Cache{MinTTL: time.Second, MaxTTL: time.Hour}, 300, 300},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				c, _ := cached(l, tc.cache, with(fmt.Sprint(tc.ttl, " A 192.0.2.1")))
				for range 2 {
					r, _ := l.must(c, "x.example.")
					assert.Equal(t, tc.want, ttl(r), "of the first answer as of those from the cache")
				}
			})
		})
	}
}

func TestCacheStoresNoAnswerWithTTLZero(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, &dnshedge.Cache{MinTTL: time.Minute}, with("0 A 192.0.2.1"))
		l.must(c, "x.example.")
		r, _ := l.must(c, "x.example.")
		assert.Zero(t, ttl(r))
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

// RFC 2308 §2 and §5.
func TestCacheTakesNegativeTTLFromSOA(t *testing.T) {
	for name, tc := range map[string]struct {
		rcode        int
		ttl, minimum uint32
		cache        *dnshedge.Cache
		want         time.Duration
	}{
		"NXDOMAIN, TTL":            {dns.RcodeNameError, 30, 300, new(dnshedge.Cache), 30 * time.Second},
		"NXDOMAIN, MINIMUM":        {dns.RcodeNameError, 300, 20, new(dnshedge.Cache), 20 * time.Second},
		"NODATA, TTL":              {dns.RcodeSuccess, 30, 300, new(dnshedge.Cache), 30 * time.Second},
		"NODATA, MINIMUM":          {dns.RcodeSuccess, 300, 20, new(dnshedge.Cache), 20 * time.Second},
		"an hour at most":          {dns.RcodeNameError, 1 << 20, 1 << 20, new(dnshedge.Cache), time.Hour},
		"MaxNegativeTTL":           {dns.RcodeSuccess, 300, 300, &dnshedge.Cache{MaxNegativeTTL: 5 * time.Second}, 5 * time.Second},
		"MinTTL is for positives":  {dns.RcodeSuccess, 300, 7, &dnshedge.Cache{MinTTL: time.Minute}, 7 * time.Second},
		"a MINIMUM of 0: not kept": {dns.RcodeNameError, 300, 0, new(dnshedge.Cache), 0},
		"no MaxNegativeTTL":        {dns.RcodeNameError, 300, 300, &dnshedge.Cache{MaxNegativeTTL: -1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				tc.cache.MaxStale = -1
				c, s := cached(l, tc.cache, func(q dnstest.Query) dnstest.Reply {
					return dnstest.Reply{Msg: dnstest.Negative(q, tc.rcode, tc.ttl, tc.minimum)}
				})
				r, _ := l.must(c, "x.example.")
				assert.Equal(t, tc.rcode, r.Rcode)
				assert.EqualValues(t, tc.want/time.Second, r.Ns[0].Header().Ttl)
				if tc.want == 0 {
					l.must(c, "x.example.")
					assert.EqualValues(t, 2, s.Queries.Load())
					return
				}
				time.Sleep(tc.want - 100*ms)
				r, took := l.must(c, "x.example.")
				assert.Zero(t, took)
				assert.Equal(t, tc.rcode, r.Rcode)
				time.Sleep(100 * ms)
				l.must(c, "x.example.")
				assert.EqualValues(t, 2, s.Queries.Load())
			})
		})
	}
}

func TestCacheStoresNoNegativeAnswerWithoutSOA(t *testing.T) {
	for _, code := range []int{dns.RcodeNameError, dns.RcodeSuccess} {
		bubble(t, func(l *lab) {
			c, s := cached(l, new(dnshedge.Cache), rcode(code))
			l.must(c, "x.example.")
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, code, r.Rcode)
			assert.EqualValues(t, 2, s.Queries.Load())
		})
	}
}

func TestCacheNXDOMAINCoversAllTypes(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "nodata.example." {
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 60, 60)}
			}
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 60, 60)}
		})
		for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX} {
			r, _, err := c.Exchange(question("nx.example.", typ), "")
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeNameError, r.Rcode)
			assert.Equal(t, typ, r.Question[0].Qtype)
		}
		assert.EqualValues(t, 1, s.Queries.Load(), "NXDOMAIN is for all types")
		for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX} {
			_, _, err := c.Exchange(question("nodata.example.", typ), "")
			require.NoError(t, err)
		}
		assert.EqualValues(t, 4, s.Queries.Load(), "NODATA is for one")
	})
}

func TestCacheTreatsAliasWithoutTargetAsNegative(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, &dnshedge.Cache{MaxStale: -1}, func(q dnstest.Query) dnstest.Reply {
			m := dnstest.Negative(q, dns.RcodeNameError, 300, 10)
			rr, err := dnstest.RR("x.example.", "600 CNAME y.example.")
			require.NoError(t, err)
			m.Answer = append(m.Answer, rr)
			return dnstest.Reply{Msg: m}
		})
		l.must(c, "x.example.")
		_, _, err := c.Exchange(question("x.example.", dns.TypeAAAA), "")
		require.NoError(t, err)
		assert.EqualValues(t, 2, s.Queries.Load(), "what does not exist is y.example.")
		time.Sleep(11 * time.Second)
		l.must(c, "x.example.")
		assert.EqualValues(t, 3, s.Queries.Load())
	})
}

// RFC 9520 §3.2.
func TestCacheDoublesFailureTTL(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), rcode(dns.RcodeServerFailure))
		for n, keep := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			require.EqualValues(t, n+1, s.Queries.Load())
			time.Sleep(keep - ms)
			_, took := l.must(c, "x.example.")
			assert.Zero(t, took)
			require.EqualValues(t, n+1, s.Queries.Load())
			time.Sleep(2 * ms)
		}
	})
}

func TestCacheStoresTimeoutBriefly(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), drop)
		_, took, first := l.ask(c, "x.example.")
		require.Error(t, first)
		assert.Equal(t, 5*time.Second, took)
		_, took, err := l.ask(c, "x.example.")
		assert.Equal(t, first, err)
		assert.Zero(t, took)
		time.Sleep(time.Second)
		_, took, err = l.ask(c, "x.example.")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, took)
	})
}

func TestCacheFailureReplacesNoAnswer(t *testing.T) {
	for name, bad := range map[string]dnstest.Handler{"SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused), "silence": drop} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				c, s := cached(l, new(dnshedge.Cache), script(with("10 A 192.0.2.1"), bad, bad, with("10 A 192.0.2.2")))
				c.Timeout = 190 * ms // before anything is sent a third time
				l.must(c, "x.example.")
				time.Sleep(11 * time.Second)
				r, err := l.edns(c, "x.example.")
				require.NoError(t, err)
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.EqualValues(t, 30, ttl(r), "RFC 8767 §4")
				assert.Equal(t, []uint16{3}, edes(r), "stale answer")
				n := s.Queries.Load()
				time.Sleep(29 * time.Second)
				r, took := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.Zero(t, took)
				assert.Equal(t, n, s.Queries.Load(), "the recheck timer, RFC 8767 §5")
			})
		})
	}
}

// A name does not exist, and servers fail questions of some types. NXDOMAIN is cached for all types. After it has
// expired, a failed refresh starts the recheck timer (RFC 8767 §5) for the failed type only.
func TestCacheFailureOfOneTypeDelaysNoOtherType(t *testing.T) {
	bubble(t, func(l *lab) {
		var asked [dns.TypeAAAA + 1]atomic.Int64
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			asked[q.Question[0].Qtype].Add(1)
			if q.Question[0].Qtype == dns.TypeA {
				return negative(dns.RcodeNameError, 5)(q)
			}
			return rcode(dns.RcodeServerFailure)(q)
		})
		l.must(c, "x.example.")
		time.Sleep(6 * time.Second)
		for range 2 {
			assert.Equal(t, dns.RcodeNameError, l.askType(c, "x.example.", dns.TypeAAAA).Rcode, "it is stale")
		}
		once := asked[dns.TypeAAAA].Load()
		l.must(c, "x.example.")
		assert.EqualValues(t, 2, asked[dns.TypeA].Load(), "nobody has failed it")

		time.Sleep(6 * time.Second)
		for range 3 {
			l.askType(c, "x.example.", dns.TypeAAAA)
			l.askType(c, "x.example.", dns.TypeMX)
		}
		assert.Equal(t, 2*once, asked[dns.TypeAAAA].Load())
		assert.Equal(t, once, asked[dns.TypeMX].Load(), "both are known to fail")
	})
}

// RFC 8767 §5.
func TestCacheServesStaleAfterClientTimer(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), script(with("10 A 192.0.2.1"), after(4*time.Second, with("10 A 192.0.2.2"))))
		l.must(c, "x.example.")
		time.Sleep(11 * time.Second)
		r, took := l.must(c, "x.example.")
		assert.Equal(t, 1800*ms, took)
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.EqualValues(t, 1, c.Stats().Stale)
		time.Sleep(3 * time.Second)
		r, took = l.must(c, "x.example.")
		assert.Zero(t, took)
		assert.Equal(t, "192.0.2.2", addr(r), "the answer that came too late is kept")
	})
}

func TestCacheServesFreshAnswerBeforeClientTimer(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), script(with("10 A 192.0.2.1"), with("10 A 192.0.2.2")))
		l.must(c, "x.example.")
		time.Sleep(11 * time.Second)
		r, took := l.must(c, "x.example.")
		assert.Equal(t, 20*ms, took)
		assert.Equal(t, "192.0.2.2", addr(r))
	})
}

func TestCacheServesStaleAtOnce(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, &dnshedge.Cache{StaleAfter: -1}, script(with("10 A 192.0.2.1"), with("10 A 192.0.2.2")))
		l.must(c, "x.example.")
		time.Sleep(11 * time.Second)
		for range 3 {
			r, took := l.must(c, "x.example.")
			assert.Zero(t, took)
			assert.Equal(t, "192.0.2.1", addr(r))
		}
		time.Sleep(30 * ms)
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

func TestCacheServesStaleForADayAtMost(t *testing.T) {
	for limit, cache := range map[time.Duration]*dnshedge.Cache{
		24 * time.Hour: new(dnshedge.Cache), time.Hour: {MaxStale: time.Hour}, 0: {MaxStale: -1},
	} {
		bubble(t, func(l *lab) {
			c, _ := cached(l, cache, script(with("10 A 192.0.2.1"), drop))
			c.Timeout = time.Second
			l.must(c, "x.example.")
			if limit > 0 {
				time.Sleep(limit)
				l.must(c, "x.example.")
				time.Sleep(41 * time.Second)
			} else {
				time.Sleep(10 * time.Second)
			}
			_, _, err := l.ask(c, "x.example.")
			require.Error(t, err, limit)
		})
	}
}

func TestCacheMarksStaleNXDOMAIN(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), script(func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 5, 5)}
		}, drop))
		_, err := l.edns(c, "x.example.")
		require.NoError(t, err)
		time.Sleep(6 * time.Second)
		r, err := l.edns(c, "x.example.")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		assert.Equal(t, []uint16{19}, edes(r))
		assert.EqualValues(t, 30, r.Ns[0].Header().Ttl)
		r, _ = l.must(c, "x.example.")
		assert.Nil(t, r.IsEdns0(), "who sends no OPT gets none")
	})
}

func TestCacheServesNoStaleAnswerForFinalFailure(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), script(with("10 A 192.0.2.1"), func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), dns.ExtendedErrorCodeDNSBogus)}
		}))
		l.must(c, "x.example.")
		time.Sleep(11 * time.Second)
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
	})
}

func TestCacheRefreshesPopularAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), script(with("100 A 192.0.2.1"), with("100 A 192.0.2.2")))
		l.must(c, "x.example.")
		l.must(c, "x.example.")
		l.must(c, "x.example.")
		time.Sleep(89 * time.Second)
		l.must(c, "x.example.")
		assert.EqualValues(t, 1, s.Queries.Load(), "more than a tenth is left")
		time.Sleep(2 * time.Second)
		r, took := l.must(c, "x.example.")
		assert.Zero(t, took, "nobody waits")
		assert.EqualValues(t, 9, ttl(r))
		time.Sleep(time.Second)
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
		assert.EqualValues(t, 99, ttl(r))
		assert.EqualValues(t, 2, s.Queries.Load())
		assert.EqualValues(t, 1, c.Stats().Refreshes)
	})
}

func TestCacheRefreshesNoUnpopularAnswer(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with("100 A 192.0.2.1"))
		l.must(c, "x.example.")
		time.Sleep(91 * time.Second)
		l.must(c, "x.example.")
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}

func TestCacheLimitsRefreshes(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with("100 A 192.0.2.1"))
		c.Hedge = dnshedge.Hedge{}
		names := make([]string, 100)
		for i := range names {
			names[i] = fmt.Sprintf("n%d.example.", i)
			for range 3 {
				l.must(c, names[i])
			}
		}
		before := s.Queries.Load()
		time.Sleep(91 * time.Second)
		for _, n := range names {
			l.must(c, n)
		}
		time.Sleep(time.Second)
		extra := s.Queries.Load() - before
		assert.Positive(t, extra)
		assert.LessOrEqual(t, extra, int64(20+0.05*400+1), "5 % of the questions")
	})
}

func TestClientSharesOneFlightPerQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), after(100*ms, good))
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				r, took := l.must(c, "x.example.")
				assert.Equal(t, 120*ms, took)
				r.Answer[0].(*dns.A).A[3] = 99 // everyone has a copy
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, s.Queries.Load())
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}

func TestClientFlightOutlivesFirstCaller(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), after(500*ms, good))
		ctx, cancel := context.WithTimeout(background, 100*ms)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
		synctest.Wait()
		r, took := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.Equal(t, 520*ms, took)
		wg.Wait()
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}

func TestClientFlightCallersKeepTheirContexts(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), after(500*ms, good))
		var wg sync.WaitGroup
		wg.Go(func() { l.must(c, "x.example.") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(background, 100*ms)
		defer cancel()
		start := time.Now()
		_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 100*ms, time.Since(start))
		wg.Wait()
	})
}

func TestCacheReturnsCopies(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), with("A 192.0.2.1", "MX 10 mail.example.", "AAAA 2001:db8::1", "TXT one two", "y.example. SRV 1 2 3 z.example."))
		first, _ := l.must(c, "x.example.")
		want := first.String()
		for range 3 {
			r, _ := l.must(c, "x.example.")
			r.Id = first.Id
			require.Equal(t, want, r.String())
			r.Answer[0].(*dns.A).A[0] = 7
			r.Answer[1].(*dns.MX).Mx = "evil."
			r.Answer[2].(*dns.AAAA).AAAA[0] = 7
			r.Answer[3].(*dns.TXT).Txt[0] = "evil"
			r.Answer[0].Header().Ttl = 7
			r.Question[0].Name = "evil."
			r.Answer = append(r.Answer[:2], r.Answer[3:]...)
		}
	})
}

func TestCacheStoresNoAnswerOfGivenAddress(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), good)
		at := l.net.Host("a").Addr().String()
		for range 2 {
			_, _, err := c.Exchange(question("x.example.", dns.TypeA), at)
			require.NoError(t, err)
		}
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

func TestClientSetsADOnlyOnRequest(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			r := good(q)
			r.Msg.AuthenticatedData = true
			return r
		})
		for range 2 {
			r, _ := l.must(c, "x.example.")
			assert.False(t, r.AuthenticatedData)
			m := question("x.example.", dns.TypeA)
			m.AuthenticatedData = true
			r, _, err := c.Exchange(m, "")
			require.NoError(t, err)
			assert.True(t, r.AuthenticatedData)
		}
	})
}

func TestCachePurgeRemovesAllTypes(t *testing.T) {
	var c dnshedge.Cache
	for _, name := range []string{"x.example.", "y.example."} {
		for _, typ := range []uint16{dns.TypeA, dns.TypeTXT} {
			m := question(name, typ)
			rr := "A 192.0.2.1"
			if typ == dns.TypeTXT {
				rr = "TXT x"
			}
			require.True(t, c.Set(dnstest.Answer(dnstest.Query{Msg: m}, rr)))
		}
	}
	assert.Equal(t, 2, c.Purge("X.example"))
	assert.Equal(t, 0, c.Purge("x.example."))
	_, ok := c.Get(question("x.example.", dns.TypeA))
	assert.False(t, ok)
	_, ok = c.Get(question("y.example.", dns.TypeA))
	assert.True(t, ok)
}

func TestCacheReportsInvalidFields(t *testing.T) {
	for want, cache := range map[string]*dnshedge.Cache{
		"Cache.MaxBytes is -1":    {MaxBytes: -1},
		"Cache.MinTTL is -1ns":    {MinTTL: -1},
		"Cache.MinTTL is 48h0m0s": {MinTTL: 48 * time.Hour},
		"Cache.MaxTTL is -5ns":    {MaxTTL: -5},
	} {
		_, _, err := (&dnshedge.Client{Cache: cache}).Exchange(question("x.", dns.TypeA), "")
		require.ErrorContains(t, err, want)
	}
}

// fill adds n answers to a cache.
func fill(c *dnshedge.Cache, n int) {
	m := dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1")
	for i := range n {
		name := fmt.Sprintf("host-%d.example.", i)
		m.Question[0].Name = name
		m.Answer[0].Header().Name = name
		c.Set(m)
	}
}

func TestCacheStaysWithinMaxBytes(t *testing.T) {
	doubles.SkipSimulation(t)
	if testing.Short() {
		t.Skip("adds 300,000 entries")
	}
	const bound = 64 << 20
	entries := 300_000 // about five times as many as fit
	if doubles.RaceEnabled {
		entries = 100_000
	}
	before := heap()
	c := &dnshedge.Cache{MaxBytes: bound}
	fill(c, entries)
	deadline := time.Now().Add(10 * time.Second) // evictions are finished by the cache's own goroutine
	for c.Bytes() > bound && time.Now().Before(deadline) {
		time.Sleep(10 * ms)
	}
	took := heap() - before
	t.Logf("%d entries added, %d kept, %d MiB by the cache's account, %d MiB of heap", entries, c.Len(), c.Bytes()>>20, took>>20)
	assert.LessOrEqual(t, c.Bytes(), int64(bound))
	assert.LessOrEqual(t, took, uint64(bound))
	assert.Greater(t, c.Len(), 20_000)
	runtime.KeepAlive(c)
}

// heap returns the number of bytes in use after the garbage of earlier tests has been collected. Cleanups run in
// goroutines, which a busy machine may delay.
func heap() uint64 {
	var m runtime.MemStats
	for last, same := uint64(0), 0; same < 3; last = m.HeapAlloc {
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
		runtime.ReadMemStats(&m)
		if same++; last == 0 || m.HeapAlloc+last/100 < last {
			same = 0
		}
	}
	return m.HeapAlloc
}

func TestCacheEntryTakesAtMost450Bytes(t *testing.T) {
	const entries = 30_000
	before := heap()
	c := &dnshedge.Cache{MaxBytes: 1 << 30}
	fill(c, entries)
	each := (heap() - before) / entries
	t.Logf("%d bytes each, %d by the cache's account", each, c.Bytes()/entries)
	assert.LessOrEqual(t, each, uint64(450))
	assert.Equal(t, entries, c.Len())
	runtime.KeepAlive(c)
}

// model is a simple reference implementation of the cache: it stores every entry and searches all of them.
type model struct{ entries []modelEntry }

type modelEntry struct {
	name       string
	typ        uint16
	nx         bool
	stored     time.Time
	ttl        uint32
	do, absent bool
}

func (m *model) set(e modelEntry) {
	// A new answer replaces the old one. If it shows that the name exists, it also removes
	// denials of that name and of domains that contain it.
	for i := range m.entries {
		o := &m.entries[i]
		if o.do == e.do && (o.name == e.name && (o.typ == e.typ || o.nx) || !e.nx && o.nx && strings.HasSuffix(e.name, "."+o.name)) {
			o.absent = true
		}
	}
	m.entries = append(m.entries, e)
}

// get returns the cached answer, or false.
func (m *model) get(name string, typ uint16, do bool, now time.Time) (left uint32, nx, ok bool) {
	find := func(match func(e modelEntry) bool) (uint32, bool, bool) {
		for _, e := range m.entries {
			age := now.Sub(e.stored)
			if e.do != do || e.absent || !match(e) || age >= time.Duration(e.ttl)*time.Second {
				continue
			}
			up := uint32((age + time.Second - 1) / time.Second)
			if up >= e.ttl {
				return 1, e.nx, true
			}
			return e.ttl - up, e.nx, true
		}
		return 0, false, false
	}
	if left, nx, ok = find(func(e modelEntry) bool { return e.name == name && e.typ == typ && !e.nx }); ok {
		return left, nx, ok
	}
	return find(func(e modelEntry) bool { return e.name == name && e.nx }) // an unvalidated denial says nothing about subdomains
}

func FuzzCacheMatchesModel(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 200, 201, 202, 203})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 200 {
			steps = steps[:200]
		}
		bubbleOnly(t, func(t *testing.T) {
			var c dnshedge.Cache
			var m model
			for i := 0; i+3 < len(steps); i += 4 {
				op, who, what, when := steps[i], steps[i+1], steps[i+2], steps[i+3]
				name := []string{"a.example.", "b.a.example.", "b.example."}[who%3]
				typ := []uint16{dns.TypeA, dns.TypeAAAA}[what%2]
				do := what&2 != 0
				ask := question(name, typ)
				if who%2 == 0 {
					ask.Question[0].Name = strings.ToUpper(name)
				}
				if do {
					ask.SetEdns0(1232, true)
				}
				now := time.Now()
				ttl := uint32(when%64) + 1
				switch op % 4 {
				case 0: // a good answer
					rr := []string{"A 192.0.2.1", "AAAA 2001:db8::1"}[what%2]
					require.True(t, c.Set(dnstest.Answer(dnstest.Query{Msg: ask}, fmt.Sprint(ttl, " ", rr))))
					m.set(modelEntry{name: name, typ: typ, stored: now, ttl: ttl, do: do})
				case 1:
					require.True(t, c.Set(dnstest.Negative(dnstest.Query{Msg: ask}, dns.RcodeNameError, ttl, 1000)))
					m.set(modelEntry{name: name, typ: typ, nx: true, stored: now, ttl: ttl, do: do})
				case 2:
					time.Sleep(time.Duration(when) * 100 * ms)
				}
				now = time.Now()
				r, ok := c.Get(ask)
				left, nx, want := m.get(name, typ, do, now)
				if ok != want {
					t.Fatalf("step %d: %s %d: found %v, want %v", i, name, typ, ok, want)
				}
				if !ok {
					continue
				}
				got := uint32(0)
				if nx {
					got = r.Ns[0].Header().Ttl
				} else {
					got = r.Answer[0].Header().Ttl
				}
				if nx != (r.Rcode == dns.RcodeNameError) || got != left || r.Question[0] != ask.Question[0] {
					t.Fatalf("step %d: %v; want %d s left, NXDOMAIN %v", i, r, left, nx)
				}
			}
		})
	})
}
