package recursor_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// pair is a zone with two servers, below a zone with two servers. Each server also has a zone of its own, by which
// its RTT can be measured.
const pair = `
. served 198.41.0.4 198.41.0.5
example. delegated 192.0.2.1 192.0.2.2
  * A 192.0.2.80
one. delegated 192.0.2.1
two. delegated 192.0.2.2
`

// warmUp makes r measure the RTT of each server of pair many times.
func (w *testNetwork) warmUp(r *recursor.Resolver) {
	w.t.Helper()
	for i := range 40 {
		w.ask(r, fmt.Sprintf("met%d.one. A", i))
		w.ask(r, fmt.Sprintf("met%d.two. A", i))
	}
	w.ask(r, "met.example. A")
}

// queryDelays returns the times from the first query for a question to each further one. It starts at the n-th
// query.
func (w *testNetwork) queryDelays(n int, question string) (all []time.Duration) {
	var first time.Duration
	for _, a := range w.queriesSince(n) {
		if a.name+" "+dns.TypeToString[a.qtype] == question {
			if all == nil {
				first = a.at
			}
			all = append(all, a.at-first)
		}
	}
	return all
}

func TestResolverHedgesUnknownServerAfter60Milliseconds(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		w.setFaultOfFirstServer("198.41.0.4 198.41.0.5", silent)
		r := w.resolver()
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.Equal(t, []time.Duration{0, 60 * ms}, w.queryDelays(0, ". NS"))
		s := r.Stats()
		assert.EqualValues(t, 1, s.HedgeWins)
		assert.EqualValues(t, 1, s.Hedges)
		assert.Zero(t, s.Timeouts)
	})
}

func TestResolverHedgesKnownServerAfterRTTAndFourDeviations(t *testing.T) {
	for _, c := range []struct{ rtt, from, to time.Duration }{{5 * ms, 20 * ms, 21 * ms}, {100 * ms, 100 * ms, 130 * ms}} {
		bubble(t, pair, func(t *testing.T, w *testNetwork) {
			w.updateServers("192.0.2.1 192.0.2.2", func(s *server) { s.rtt = c.rtt })
			r := w.resolver()
			w.warmUp(r)
			n := len(w.queriesSince(0))
			w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion("late.example.", silent))
			assert.Equal(t, "NOERROR late.example. A 192.0.2.80", formatResponse(w.ask(r, "late.example. A")))
			gaps := w.queryDelays(n, "late.example. A")
			require.Len(t, gaps, 2)
			assert.GreaterOrEqual(t, gaps[1], c.from)
			assert.LessOrEqual(t, gaps[1], c.to)
			log := w.queriesSince(n)
			assert.NotEqual(t, log[0].to, log[1].to, "a hedge goes to another server")
		})
	}
}

func TestHedgeOffAsksNextServerAfterTimeout(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		w.setFaultOfFirstServer("198.41.0.4 198.41.0.5", silent)
		r := w.resolver(noHedges)
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		gaps := w.queryDelays(0, ". NS")
		require.Len(t, gaps, 2)
		assert.Equal(t, 200*ms, gaps[1])
		s := r.Stats()
		assert.Zero(t, s.Hedges)
		assert.Zero(t, s.Denied)
		assert.EqualValues(t, 1, s.Timeouts)
	})
}

func TestHedgeExploresUnknownServers(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4
  * A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		w.ask(r, "first.example. A")
		var best string
		for _, a := range w.queriesSince(0) {
			best = a.to.String()
		}
		for i := range 30 {
			w.ask(r, fmt.Sprintf("n%d.example. A", i))
		}
		assert.Equal(t, 31, w.countQueries(best), "a good server is still queried first")
		w.setFault(best, onlyForQuestion("late.example.", silent))
		n := len(w.queriesSince(0))
		w.ask(r, "late.example. A")
		log := w.queriesSince(n)
		require.Len(t, log, 2)
		assert.NotEqual(t, best, log[1].to.String())
		w.setFault(best, onlyForQuestion("later.example.", silent))
		n = len(w.queriesSince(0))
		w.ask(r, "later.example. A")
		second := w.queriesSince(n)
		require.Len(t, second, 2)
		assert.NotEqual(t, log[1].to, second[1].to, "some servers were never queried")
	})
}

func TestHedgesStayWithinShareOfQueries(t *testing.T) {
	for _, percent := range []float64{0, 5, 100} {
		bubble(t, pair, func(t *testing.T, w *testNetwork) {
			w.updateServers("192.0.2.2", func(s *server) { s.rtt = 30 * ms })
			r := w.resolver(func(r *recursor.Resolver) { r.Hedge.BudgetPercent = percent })
			w.warmUp(r)
			// The better one of two servers loses every third query.
			n := 0
			w.setFault("192.0.2.1", func(_ query, r *dns.Msg) *dns.Msg {
				if n++; n%3 == 0 {
					return nil
				}
				return r
			})
			for i := range 1500 {
				w.ask(r, fmt.Sprintf("n%d.example. A", i))
			}
			s := r.Stats()
			share := percent / 100
			if percent == 0 {
				share = 0.15
			}
			t.Logf("%g %%: %d hedges, %d denied, %d queries", percent, s.Hedges, s.Denied, s.Wire)
			assert.LessOrEqual(t, float64(s.Hedges), share*float64(s.Wire-s.Hedges)+20.5)
			assert.Positive(t, s.Hedges)
			if percent < 100 {
				assert.Positive(t, s.Denied)
			}
		})
	}
}

func TestMaxPerSecondBoundsResolverHedges(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		n := 0
		w.setFault("192.0.2.1 192.0.2.2", func(_ query, r *dns.Msg) *dns.Msg {
			if n++; n%3 == 0 {
				return nil
			}
			return r
		})
		r := w.resolver(func(r *recursor.Resolver) { r.Hedge.MaxPerSecond, r.Hedge.BudgetPercent = 2, 100 })
		for i := range 500 {
			w.ask(r, fmt.Sprintf("n%d.example. A", i))
		}
		took := time.Since(w.start).Seconds()
		assert.LessOrEqual(t, float64(r.Stats().Hedges), 2*took+3)
		assert.Positive(t, r.Stats().Hedges)
	})
}

// TestResolverAvoidsDeadServer has a dead server, to which unbound sends queries after 0, 376, 752 and 1504 ms.
func TestResolverAvoidsDeadServer(t *testing.T) {
	for _, off := range []bool{false, true} {
		bubble(t, pair, func(t *testing.T, w *testNetwork) {
			who := w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", silent)
			r := w.resolver(func(r *recursor.Resolver) { r.Hedge.Off = off })
			start := time.Now()
			assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
			assert.LessOrEqual(t, time.Since(start), map[bool]time.Duration{false: 100 * ms, true: 240 * ms}[off])
			for i := range 100 {
				start = time.Now()
				assert.Equal(t, "NOERROR", dns.RcodeToString[w.ask(r, fmt.Sprintf("n%d.example. A", i)).Rcode])
				assert.LessOrEqual(t, time.Since(start), 220*ms)
				time.Sleep(100 * ms)
			}
			assert.LessOrEqual(t, w.countQueries(who()), 8)
		})
	}
}

// TestResolverReturnsToRecoveredFastServer is unbound#713: a fast server that did not answer for a while was never
// queried again.
func TestResolverReturnsToRecoveredFastServer(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		w.updateServers("192.0.2.2", func(s *server) { s.rtt = 120 * ms })
		r := w.resolver()
		n := 0
		ask := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); n++ {
				w.ask(r, fmt.Sprintf("n%d.example. A", n))
				time.Sleep(200 * ms)
			}
		}
		fast := func(from int) float64 {
			all, n := 0, 0
			for _, a := range w.queriesSince(from) {
				if strings.HasPrefix(a.to.String(), "192.0.2.") {
					all++
					if a.to.String() == "192.0.2.1" {
						n++
					}
				}
			}
			return float64(n) / float64(all)
		}
		w.warmUp(r)
		from := len(w.queriesSince(0))
		ask(10 * time.Second)
		assert.Greater(t, fast(from), 0.9)
		w.setFault("192.0.2.1", silent)
		from = len(w.queriesSince(0))
		ask(2 * time.Minute)
		assert.Less(t, fast(from), 0.1, "an unresponsive server is queried seldom")
		w.setFault("192.0.2.1", nil)
		ask(5*time.Minute + time.Second)
		from = len(w.queriesSince(0))
		ask(30 * time.Second)
		assert.Greater(t, fast(from), 0.9, "the fast server was forgotten")
	})
}

func TestServerKeepsRTTAfterTimeout(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		w.updateServers("192.0.2.2", func(s *server) { s.rtt = 50 * ms })
		r := w.resolver()
		w.warmUp(r)
		w.setFault("192.0.2.1", onlyForQuestion("lost.example.", silent))
		w.ask(r, "lost.example. A")
		n := len(w.queriesSince(0))
		w.ask(r, "next.example. A")
		assert.Equal(t, "192.0.2.1", w.queriesSince(n)[0].to.String(), "one timeout does not raise the RTT")
	})
}

func TestResolverAsksServersInBackoffWhenAllAre(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		w.warmUp(r)
		w.setFault("192.0.2.1 192.0.2.2", silent)
		for i := range 3 {
			assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, fmt.Sprintf("dead%d.example. A", i))))
			time.Sleep(5100 * ms)
		}
		assert.Positive(t, r.Stats().Resting)
		w.setFault("192.0.2.1 192.0.2.2", nil)
		start := time.Now()
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.LessOrEqual(t, time.Since(start), 20*ms)
	})
}

func TestOutageCosts15PercentMoreQueriesAtMost(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for _, hosted := range []bool{false, true} { // zones with servers of their own, or with servers in another dead zone
		cost := func(off bool) (n int, s recursor.Stats) {
			var text strings.Builder
			text.WriteString(". served 198.41.0.4 198.41.0.5\n")
			for i := range 60 {
				if hosted {
					fmt.Fprintf(&text, "hoster%[1]d. delegated 192.0.6.%[1]d 192.0.7.%[1]d\n  a A 192.0.8.%[1]d\n  b A 192.0.9.%[1]d\nz%[1]d. served 192.0.8.%[1]d 192.0.9.%[1]d\n", i)
				} else {
					fmt.Fprintf(&text, "z%d. delegated 192.0.3.%d 192.0.4.%d 192.0.5.%d\n", i, i+1, i+1, i+1)
				}
			}
			bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
				for i := range 60 {
					if hosted {
						w.server("198.41.0.4").zones[0].add(t, fmt.Sprintf("z%[1]d. 7200 NS a.hoster%[1]d.", i))
						w.server("198.41.0.4").zones[0].add(t, fmt.Sprintf("z%[1]d. 7200 NS b.hoster%[1]d.", i))
					}
				}
				r := w.resolver(func(r *recursor.Resolver) { r.Hedge.Off = off })
				for i := range 1000 {
					require.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, fmt.Sprintf("n%d.z%d. A", i, i%60))))
				}
				time.Sleep(61 * time.Minute) // the addresses of servers are forgotten, and the delegations are not
				before := w.countQueries()
				w.withLock(func() {
					for a, s := range w.servers {
						if a.As4()[0] == 192 {
							s.change = silent
						}
					}
				})
				var wg sync.WaitGroup
				for i := range 2000 {
					wg.Go(func() { assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, fmt.Sprintf("m%d.z%d. A", i, i%60)))) })
					time.Sleep(20 * ms)
				}
				wg.Wait()
				n, s = w.countQueries()-before, r.Stats()
			})
			return n, s
		}
		with, s := cost(false)
		without, _ := cost(true)
		t.Logf("hosted elsewhere %v: %d queries with %d hedges, %d without: %+.1f %%", hosted, with, s.Hedges, without, 100*(float64(with)/float64(without)-1))
		assert.LessOrEqual(t, float64(with), 1.15*float64(without))
	}
}

func TestResolverAnswersDespitePacketLoss(t *testing.T) {
	for _, loss := range []float64{0.015, 0.1, 0.3} {
		for _, off := range []bool{false, true} {
			var text strings.Builder
			text.WriteString(". served 198.41.0.4 198.41.0.5 198.41.0.6\n")
			for i := range 40 {
				fmt.Fprintf(&text, "z%d. delegated 192.0.3.%d 192.0.4.%d 192.0.5.%d\n  * A 192.0.2.80\n", i, i+1, i+1, i+1)
			}
			bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
				w.loss = loss
				r := w.resolver(func(r *recursor.Resolver) { r.Hedge.Off = off })
				failed := 0
				var took []time.Duration
				for i := range 1000 {
					start := time.Now()
					m := w.ask(r, fmt.Sprintf("n%d.z%d. A", i, i%40))
					if m.Rcode != dns.RcodeSuccess {
						failed++
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				t.Logf("loss %g, hedges off: %v: %d failed, p50 %v, p99 %v, %.2f queries a name", loss, off, failed, took[500], took[990], float64(w.countQueries())/1000)
				assert.LessOrEqual(t, failed, map[bool]int{true: 30, false: 0}[loss > 0.2])
				if loss < 0.2 {
					assert.Less(t, float64(w.countQueries()), 1800.)
				}
			})
		}
	}
}

func TestResolverFailsOverFromUnreachableAddressAtOnce(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 2001:db8:f::4
example. delegated 192.0.2.1 2001:db8:1::1 2001:db8:1::2
  * A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.refuse = func(_ string, a netip.Addr) error {
			if a.Is6() {
				return syscall.ENETUNREACH
			}
			return nil
		}
		r := w.resolver()
		for i := range 100 {
			start := time.Now()
			m := w.ask(r, fmt.Sprintf("n%d.example. A", i))
			assert.Equal(t, dns.RcodeSuccess, m.Rcode)
			assert.LessOrEqual(t, time.Since(start), 30*ms)
		}
		assert.Less(t, w.dials, 130, "connections to an unreachable address family")
	})
}

func TestResolverAvoidsUnresponsiveAddressFamilyForAMinute(t *testing.T) {
	var text strings.Builder
	text.WriteString(". served 198.41.0.4\n")
	for i := range 60 {
		fmt.Fprintf(&text, "z%d. delegated 192.0.3.%d 192.0.4.%d 2001:db8:1::%x 2001:db8:2::%x\n  * A 192.0.2.80\n", i, i+1, i+1, i+1, i+1)
	}
	bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
		w.withLock(func() {
			for a, s := range w.servers {
				if a.Is6() {
					s.change = silent
				}
			}
		})
		r := w.resolver()
		six := func(n int) (count int) {
			for _, a := range w.queriesSince(n) {
				if a.to.Is6() {
					count++
				}
			}
			return count
		}
		for i := range 60 {
			assert.Equal(t, dns.RcodeSuccess, w.ask(r, fmt.Sprintf("www.z%d. A", i)).Rcode)
			time.Sleep(500 * ms)
		}
		t.Logf("%d queries over IPv6", six(0))
		assert.LessOrEqual(t, six(0), 16)
		assert.Positive(t, six(0))
	})
}

func TestNoIPv4AndNoIPv6DisableFamily(t *testing.T) {
	const text = `
. served 198.41.0.4 2001:db8:f::4
example. delegated 192.0.2.1 2001:db8:1::1
  * A 192.0.2.80
six. delegated 2001:db8:1::3
  * A 192.0.2.80
four. delegated 192.0.2.4
  * A 192.0.2.80
lost. served 192.0.2.5
`
	for _, no6 := range []bool{false, true} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			root := w.server("198.41.0.4").zones[0]
			root.add(t, "lost. NS ns.four.")
			w.server("192.0.2.4").zones[0].add(t, "ns A 192.0.2.5")
			r := w.resolver(func(r *recursor.Resolver) { r.NoIPv6, r.NoIPv4 = no6, !no6 })
			assert.Equal(t, dns.RcodeSuccess, w.ask(r, "www.example. A").Rcode)
			assert.Equal(t, no6, w.ask(r, "www.six. A").Rcode == dns.RcodeServerFailure)
			assert.Equal(t, !no6, w.ask(r, "www.four. A").Rcode == dns.RcodeServerFailure)
			if no6 {
				w.ask(r, "www.lost. A")
			}
			for _, a := range w.queriesSince(0) {
				assert.Equal(t, no6, a.to.Is4(), a)
				assert.False(t, no6 && a.qtype == dns.TypeAAAA, "an unused address was looked up: %v", a)
			}
		})
	}
}

func TestLosersUpdateRTTForTwoSeconds(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		w.updateServers("192.0.2.1", func(s *server) { s.rtt = 300 * ms })
		for i := range 20 {
			w.ask(r, fmt.Sprintf("n%d.example. A", i))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.withLock(func() { assert.Zero(t, w.open) })
		n := len(w.queriesSince(0))
		for i := range 20 { // the other server is now known to be faster
			w.ask(r, fmt.Sprintf("m%d.example. A", i))
		}
		for _, a := range w.queriesSince(n) {
			assert.Equal(t, "192.0.2.2", a.to.String())
		}
		w.setFault("192.0.2.1 192.0.2.2", silent)
		w.ask(r, "dead.example. A")
		time.Sleep(2100 * ms)
		synctest.Wait()
		w.withLock(func() { assert.Zero(t, w.open) })
	})
}

func TestImportRestoresServersAndDelegations(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 198.41.0.5
tld. delegated 192.0.2.1 192.0.2.2
z.tld. delegated 192.0.3.1 192.0.3.2
  * A 192.0.2.80
one.tld. delegated 192.0.3.1
two.tld. delegated 192.0.3.2
`, func(t *testing.T, w *testNetwork) {
		w.updateServers("198.41.0.5 192.0.2.2 192.0.3.2", func(s *server) { s.rtt = 90 * ms })
		w.updateServers("198.41.0.4 192.0.2.1 192.0.3.1", func(s *server) { s.rtt = 30 * ms })
		old := w.resolver()
		for i := range 20 {
			w.ask(old, fmt.Sprintf("n%d.z.tld. A", i))
			w.ask(old, fmt.Sprintf("n%d.one.tld. A", i))
			w.ask(old, fmt.Sprintf("n%d.two.tld. A", i))
		}
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		export := b.Bytes()

		r := w.resolver()
		require.NoError(t, r.Import(bytes.NewReader(export)))
		n := len(w.queriesSince(0))
		start := time.Now()
		assert.Equal(t, "NOERROR www.z.tld. A 192.0.2.80", formatResponse(w.ask(r, "www.z.tld. A")))
		assert.LessOrEqual(t, time.Since(start), 130*ms)
		for _, a := range w.queriesSince(n) {
			assert.NotContains(t, []string{"198.41.0.4", "198.41.0.5"}, a.to.String(), "the delegation of a TLD is known")
		}
		assert.Equal(t, "192.0.3.1", w.queriesSince(n)[len(w.queriesSince(n))-1].to.String(), "the fast server is known")

		time.Sleep(2 * time.Hour) // the TTL of the delegation is an hour
		late := w.resolver()
		require.NoError(t, late.Import(bytes.NewReader(export)))
		before := w.countQueries("198.41.0.4", "198.41.0.5")
		assert.Equal(t, "NOERROR www.z.tld. A 192.0.2.80", formatResponse(w.ask(late, "www.z.tld. A")))
		assert.Greater(t, w.countQueries("198.41.0.4", "198.41.0.5"), before, "the age of the export counts")

		time.Sleep(23 * time.Hour)
		require.Error(t, w.resolver().Import(bytes.NewReader(export)), "older than a day")
	})
}

func TestImportTakesZonesOnlyOfResolversWithTheSameServers(t *testing.T) {
	other := func(set func(*recursor.Resolver)) func(*testing.T, *testNetwork) {
		return func(t *testing.T, w *testNetwork) {
			old := w.resolver(func(r *recursor.Resolver) { r.Hints = []netip.Addr{netip.MustParseAddr("198.41.0.4")} })
			require.Contains(t, formatResponse(w.ask(old, "www.example. A")), "NOERROR")
			var b bytes.Buffer
			require.NoError(t, old.Export(&b))
			r := w.resolver(func(r *recursor.Resolver) { r.Hints = []netip.Addr{netip.MustParseAddr("198.41.0.4")} }, set)
			require.NoError(t, r.Import(&b))
			assert.Positive(t, r.Stats().Servers, "round trip times belong to addresses, not to zones")
			assert.Zero(t, r.Stats().Zones)
			assert.False(t, recursor.HasDelegation(r, "example.", time.Now()))
			n := len(w.queriesSince(0))
			w.ask(r, "www.example. A")
			require.Greater(t, len(w.queriesSince(n)), 0)
			assert.Equal(t, ".", w.queriesSince(n)[0].name, "the priming query is sent")
			assert.Contains(t, r.Hints, w.queriesSince(n)[0].to)
		}
	}
	for name, set := range map[string]func(*recursor.Resolver){
		"Hints":     func(r *recursor.Resolver) { r.Hints = []netip.Addr{netip.MustParseAddr("198.41.0.5")} },
		"more":      func(r *recursor.Resolver) { r.Hints = append(r.Hints, netip.MustParseAddr("198.41.0.5")) },
		"PrivateOK": func(r *recursor.Resolver) { r.PrivateOK = true },
		"Zones": func(r *recursor.Resolver) {
			r.Zones = map[string][]netip.AddrPort{"corp.": {netip.MustParseAddrPort("192.0.2.9:53")}}
		},
	} {
		t.Run(name, func(t *testing.T) { bubble(t, pair, other(set)) })
	}
}

func TestIdentityCoversFieldsThatChangeAnswers(t *testing.T) {
	seen := make(map[string]int)
	for i, r := range []*recursor.Resolver{
		{}, {Hints: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, {PrivateOK: true}, {Limits: recursor.Limits{NSEC3Iterations: 10}},
		{Zones: map[string][]netip.AddrPort{"corp.": {netip.MustParseAddrPort("192.0.2.9:53")}}},
		{Trust: dnssec.Trust{Off: true}}, {Trust: dnssec.Trust{Report: true}}, {Trust: dnssec.Trust{AllowSHA1: true}},
		{Trust: dnssec.Trust{Insecure: []string{"corp."}}}, {Trust: dnssec.Trust{Anchors: []dns.RR{}}},
	} {
		before, ok := seen[r.Identity()]
		assert.False(t, ok, "%d and %d", i, before)
		seen[r.Identity()] = i
	}
	assert.Equal(t, new(recursor.Resolver).Identity(), (&recursor.Resolver{Limits: recursor.Limits{NSEC3Iterations: 50}}).Identity(), "the default")
}

func TestImportOfDamagedDataChangesNothing(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		old := w.resolver()
		w.warmUp(old)
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		for i := 0; i < b.Len(); i += 1 + b.Len()/50 {
			r := w.resolver()
			bad := bytes.Clone(b.Bytes())
			bad[i] ^= 0x15
			assert.Error(t, r.Import(bytes.NewReader(bad)), "octet %d of %d", i, b.Len())
			assert.Error(t, r.Import(bytes.NewReader(b.Bytes()[:i])), "%d octets", i)
			assert.Zero(t, r.Stats().Servers)
			assert.Zero(t, r.Stats().Zones)
		}
		assert.Error(t, w.resolver().Import(bytes.NewReader(append(b.Bytes(), 0))))
	})
}

func TestTraceObservesQueriesAndAnswers(t *testing.T) {
	bubble(t, pair, func(t *testing.T, w *testNetwork) {
		var mu sync.Mutex
		var attempts, done, hedges int
		var answers []recursor.AnswerInfo
		r := w.resolver(func(r *recursor.Resolver) {
			r.Trace = &recursor.Trace{
				Attempt: func(_ context.Context, a recursor.AttemptInfo) {
					mu.Lock()
					defer mu.Unlock()
					attempts++
					if a.Hedge {
						hedges++
					}
					assert.True(t, a.Server.IsValid())
					assert.True(t, dns.IsSubDomain(a.Zone, a.Name), "%s %s", a.Zone, a.Name)
				},
				Done: func(context.Context, recursor.AttemptInfo, time.Duration, error) {
					mu.Lock()
					defer mu.Unlock()
					done++
				},
				Answer: func(_ context.Context, a recursor.AnswerInfo) {
					mu.Lock()
					defer mu.Unlock()
					answers = append(answers, a)
				},
			}
		})
		w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion("www.example.", silent))
		w.ask(r, "www.example. A")
		w.setFault("192.0.2.1 192.0.2.2", respondRcode(dns.RcodeServerFailure))
		w.ask(r, "bad.example. A")
		time.Sleep(3 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, w.countQueries(), attempts)
		assert.Equal(t, attempts, done)
		assert.Equal(t, 1, hedges)
		require.Len(t, answers, 2)
		assert.Equal(t, "www.example.", answers[0].Name)
		assert.Equal(t, dns.RcodeSuccess, answers[0].Rcode)
		assert.NoError(t, answers[0].Err)
		assert.Equal(t, 4, answers[0].Queries)
		assert.Equal(t, dns.RcodeServerFailure, answers[1].Rcode)
		assert.Error(t, answers[1].Err)
	})
}

func TestResolverCopiesTraceAtFirstUse(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		var attempts, done, answers atomic.Int64
		trace := &recursor.Trace{
			Attempt: func(context.Context, recursor.AttemptInfo) { attempts.Add(1) },
			Done:    func(context.Context, recursor.AttemptInfo, time.Duration, error) { done.Add(1) },
			Answer:  func(context.Context, recursor.AnswerInfo) { answers.Add(1) },
		}
		r := w.resolver(func(r *recursor.Resolver) { r.Trace = trace })
		require.NoError(t, r.Validate())
		*trace = recursor.Trace{}
		w.ask(r, "www.example. A")
		assert.Positive(t, attempts.Load())
		assert.Equal(t, attempts.Load(), done.Load())
		assert.EqualValues(t, 1, answers.Load())
	})
}

func TestResolverSharesConcurrentLookups(t *testing.T) {
	bubble(t, small+"\nlost.example. served 192.0.2.9\n  * A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, "lost NS ns.far.victim.")
		w.server("192.0.2.9").zones[0].add(t, "ns.far A 192.0.2.9")
		r := w.resolver()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				assert.Equal(t, dns.RcodeSuccess, w.ask(r, fmt.Sprintf("n%d.lost.example. A", i)).Rcode)
			})
		}
		wg.Wait()
		n := 0
		for _, a := range w.queriesSince(0) {
			if a.name == "ns.far.victim." && a.qtype == dns.TypeA {
				n++
			}
		}
		assert.LessOrEqual(t, n, 2)
		assert.LessOrEqual(t, w.countQueries("198.41.0.4"), 1+2*50, "the root")
	})
}
