package dnshedge_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/internal/race"
)

var path20 = netsim.Profile{Delay: netsim.Constant(10 * ms)}

func TestClientHedgesLostPacketAfterLossDelay(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		l.learn(c)
		loss := c.Stats().Upstreams[0].LossDelay
		assert.InDelta(t, 25*ms, loss, float64(2*ms))
		l.net.Link("client", "a").Set(netsim.Profile{BlackHole: true})
		time.AfterFunc(10*ms, func() { l.link("a", path20) })
		_, took := l.must(c, "x.example.")
		assert.InDelta(t, loss+20*ms, took, float64(ms))
		st := c.Stats()
		assert.EqualValues(t, 1, st.Hedges)
		assert.EqualValues(t, 1, st.HedgeWins)
	})
}

func TestClientUsesLongDelayBeforeFirstMeasurement(t *testing.T) {
	for network, want := range map[string]time.Duration{"udp": 120 * ms, "tcp": 340 * ms} {
		bubble(t, func(l *lab) {
			l.serve("a", script(drop, good))
			c := l.client(&dnshedge.Client{}, l.up(network, "a"))
			_, took := l.must(c, "x.example.")
			assert.Equal(t, want, took, network)
		})
	}
}

func TestClientDoesNotHedgeQuestionsOfHedgesOrWithoutHedging(t *testing.T) {
	for name, asked := range map[string]race.Overrides{"asked for a hedge": {Hedge: 1}, "forbidden": {Never: true}} {
		bubble(t, func(l *lab) {
			s := l.serve("a", script(drop, good))
			c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			ctx = race.WithOverrides(ctx, func(o *race.Overrides) { *o = asked })
			start := time.Now()
			_, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion("x.example.", dns.TypeA), "")
			require.NoError(t, err, name)
			assert.Equal(t, 1020*ms, time.Since(start), "%s: sent again after a second, which is no hedge", name)
			assert.EqualValues(t, 2, s.Queries.Load())
			assert.Zero(t, c.Stats().Hedges)
		})
	}
}

func TestHedgeGoesToAnotherServer(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		b := l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 120*ms, took)
		assert.EqualValues(t, 1, b.Queries.Load())
	})
}

func TestHedgeAvoidsFrozenConnection(t *testing.T) {
	// The hedge uses another connection, which takes a handshake and a round trip.
	for network, handshakes := range map[string]time.Duration{"tcp": 1, "tls": 2, "https": 2} {
		t.Run(network, func(t *testing.T) {
			bubble(t, func(l *lab) {
				var mu sync.Mutex
				frozen := 0
				s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
					mu.Lock()
					defer mu.Unlock()
					if frozen > 0 {
						frozen--
						return dnstest.Reply{}
					}
					return good(q)
				})
				c := l.client(&dnshedge.Client{}, l.up(network, "a"))
				l.learn(c)
				require.EqualValues(t, 1, s.Conns.Load())
				loss := c.Stats().Upstreams[0].LossDelay
				mu.Lock()
				frozen = 1
				mu.Unlock()
				_, took := l.must(c, "x.example.")
				assert.LessOrEqual(t, took, loss+2*20*ms+handshakes*20*ms+ms)
				assert.EqualValues(t, 2, s.Conns.Load(), "two connections at most")
				mu.Lock()
				frozen = 1
				mu.Unlock()
				_, took = l.must(c, "x.example.")
				assert.LessOrEqual(t, took, loss+20*ms+ms, "the second connection is kept")
				assert.EqualValues(t, 2, s.Conns.Load())
			})
		})
	}
}

func TestFailoverIsImmediateAndFree(t *testing.T) {
	lame := func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q)
		m.RecursionAvailable = false
		return dnstest.Reply{Msg: m}
	}
	for name, bad := range map[string]dnstest.Handler{
		"SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused),
		"NOTIMP": rcode(dns.RcodeNotImplemented), "lame": lame, "network error": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				if bad != nil {
					l.serve("a", bad)
				}
				l.serve("b", good)
				c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
				r, took := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.Equal(t, 40*ms, took)
				st := c.Stats()
				assert.EqualValues(t, 1, st.Failovers)
				assert.Zero(t, st.Hedges)
			})
		})
	}
}

func TestClientReturnsFirstFailureIfAllFail(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", rcode(dns.RcodeServerFailure))
		l.serve("b", rcode(dns.RcodeRefused))
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
	})
}

func TestClientPrefersFailureResponseToError(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("b", rcode(dns.RcodeServerFailure))
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
	})
}

func TestClientAcceptsNegativeAnswers(t *testing.T) {
	for _, code := range []int{dns.RcodeNameError, dns.RcodeSuccess} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				return dnstest.Reply{Msg: dnstest.Negative(q, code, 60, 60)}
			})
			b := l.serve("b", good)
			c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
			r, took := l.must(c, "x.example.")
			assert.Equal(t, code, r.Rcode)
			assert.Equal(t, 20*ms, took)
			assert.Zero(t, b.Queries.Load())
		})
	}
}

func TestClientTreatsDNSSECAndPolicyFailuresAsFinal(t *testing.T) {
	for code := range uint16(30) {
		want := slices.Contains([]uint16{1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 27}, code)
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "." {
					return with("NS a.root.example.")(q)
				}
				return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), code)}
			})
			b := l.serve("b", good)
			c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
			r, err := l.edns(c, "x.example.")
			require.NoError(t, err)
			assert.Equal(t, want, r.Rcode == dns.RcodeServerFailure, "EDE %d", code)
			assert.Equal(t, want, b.Queries.Load() == 0, "EDE %d", code)
			if want {
				assert.Equal(t, []uint16{code}, edes(r), "and the caller learns why")
			}
		})
	}
}

func TestClientAbandonsLosersWithoutCancelling(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(after(300*ms, good)))
		l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 120*ms, took)
		time.Sleep(time.Second)
		st := c.Stats()
		assert.EqualValues(t, 1, st.Abandoned)
		assert.InDelta(t, 320*ms, st.Upstreams[0].P50, float64(5*ms), "its true time is known")
		assert.False(t, st.Upstreams[0].Silent)
	})
}

func TestHedgesStayWithinBudget(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		l.learn(c)
		// A third of the packets is lost: more than the budget pays for.
		l.net.Link("client", "a").Set(netsim.Profile{Delay: path20.Delay, Loss: 0.33})
		const n = 1000
		for range n {
			_, _, _ = l.ask(c, "x.example.")
		}
		st := c.Stats()
		assert.LessOrEqual(t, float64(st.Hedges), 20+0.05*float64(st.Wire))
		assert.Greater(t, st.Hedges, int64(20))
		assert.Positive(t, st.Denied)
		assert.Positive(t, st.Resends, "what the budget does not save is sent again")
	})
}

func TestNoMinDelayRemovesMinimumOfLossDelay(t *testing.T) {
	bubble(t, func(l *lab) {
		l.link("a", netsim.Profile{Delay: netsim.Constant(ms / 2)})
		l.serve("a", good)
		lossDelay := func(h dnshedge.Hedge) time.Duration {
			c := l.client(&dnshedge.Client{Hedge: h}, l.up("udp", "a"))
			l.learn(c)
			return c.Stats().Upstreams[0].LossDelay
		}
		assert.Equal(t, 10*ms, lossDelay(dnshedge.Hedge{}))
		assert.Equal(t, 4*ms, lossDelay(dnshedge.Hedge{MinDelay: 4 * ms}))
		assert.InDelta(t, 1.25*float64(ms), float64(lossDelay(dnshedge.Hedge{MinDelay: dnshedge.NoMinDelay})), 0.05*float64(ms), "1.25 times the round trip time of 1 ms")
	})
}

// A caller that gives up after a few milliseconds shows nothing about the server, even if hedges start as early.
func TestShortMinDelayKeepsTimeUntilServerIsSilent(t *testing.T) {
	for _, minDelay := range []time.Duration{0, dnshedge.NoMinDelay, ms} {
		for wait, silent := range map[time.Duration]bool{5 * ms: false, 15 * ms: true} {
			bubble(t, func(l *lab) {
				l.link("a", netsim.Profile{Delay: netsim.Constant(ms / 2)})
				l.serve("a", good)
				c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{MinDelay: minDelay}}, l.up("udp", "a"))
				l.learn(c)
				l.link("a", netsim.Profile{BlackHole: true})
				for range 5 {
					ctx, cancel := context.WithTimeout(context.Background(), wait)
					_, _, err := c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
					cancel()
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
				assert.Equal(t, silent, c.Stats().Upstreams[0].Silent, "MinDelay %v, callers wait %v", minDelay, wait)
			})
		}
	}
}

func TestHedgesPerSecondAreLimited(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", after(150*ms, good))
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{MaxHedgesPerSecond: 1, BudgetPercent: 100}}, l.up("udp", "a"))
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { l.must(c, "x.example.") })
		}
		wg.Wait()
		assert.EqualValues(t, 1, c.Stats().Hedges)
	})
}

func TestOutageDoesNotMultiplyQueries(t *testing.T) {
	bubble(t, func(l *lab) {
		for _, h := range []string{"a", "b"} {
			l.serve(h, drop)
		}
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		const n = 2000
		var wg sync.WaitGroup
		for i := range n {
			time.Sleep(100 * ms) // longer than probes of a silent server are apart
			wg.Go(func() {
				_, took, err := l.ask(c, fmt.Sprintf("n%d.example.", i))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, 5*time.Second, took)
			})
		}
		wg.Wait()
		st := c.Stats()
		assert.LessOrEqual(t, st.Wire, int64(n+20+0.05*n)+10, "%+v", st) // a few queries until the servers count as silent
		t.Logf("%d queries for %d questions; %d hedges, %d resends", st.Wire, n, st.Hedges, st.Resends)
	})
}

func TestClientAsksSilentServerLastUntilProbeAnswered(t *testing.T) {
	bubble(t, func(l *lab) {
		a := l.serve("a", good)
		l.serve("b", after(30*ms, good))
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		l.learn(c)
		require.LessOrEqual(t, c.Stats().Upstreams[1].Queries, int64(1), "the first is the nearer")
		l.link("a", netsim.Profile{BlackHole: true})
		for range 3 {
			_, took := l.must(c, "x.example.")
			assert.Less(t, took, 200*ms)
		}
		assert.True(t, c.Stats().Upstreams[0].Silent)
		for range 10 {
			_, took := l.must(c, "x.example.")
			assert.Equal(t, 50*ms, took, "the other comes first")
		}
		n := a.Queries.Load()
		l.link("a", path20)
		for range 100 {
			l.must(c, "x.example.")
			time.Sleep(100 * ms)
		}
		assert.False(t, c.Stats().Upstreams[0].Silent)
		assert.Greater(t, a.Queries.Load(), n+10)
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 20*ms, took)
	})
}

func TestClientRotatesSilentServers(t *testing.T) {
	for name, fallback := range map[string]bool{"of a group": false, "of the fallback": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				hosts := []string{"a", "b", "c"}
				var ups []dnshedge.Upstream
				for _, h := range hosts {
					l.serve(h, good)
					l.link(h, netsim.Profile{BlackHole: true})
					ups = append(ups, l.up("udp", h))
				}
				c := &dnshedge.Client{Timeout: 900 * ms}
				if fallback {
					c.Fallback, ups = ups[1:], ups[:1]
				}
				l.client(c, ups...)
				for range 200 { // and nothing is left of the budget
					_, _, err := l.ask(c, "x.example.")
					require.Error(l, err)
				}
				for _, s := range c.Stats().Upstreams {
					require.True(l, s.Silent)
				}
				l.link("b", path20)
				var err error
				for range hosts {
					if _, _, err = l.ask(c, "x.example."); err == nil {
						break
					}
				}
				require.NoError(l, err)
			})
		})
	}
}

// One of two servers is silent about all names. The other is silent about one name, which is asked for repeatedly. So
// the retransmission timeout of that server exceeds Timeout.
func TestClientAsksServerAgainAfterSilentName(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", about("broken.example.", drop, good))
		l.serve("b", drop)
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "a"), l.up("udp", "b"))
		l.learn(c)
		for range 10 {
			for range 6 {
				_, _, err := l.ask(c, "broken.example.")
				require.Error(l, err)
			}
			_, took := l.must(c, "x.example.")
			assert.Less(t, took, 4*time.Second, "the other one gets half of the time that was left, or is asked when something pays for that")
		}
	})
}

func TestClientHidesDeadServerAfterASecond(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("b", good)
		l.link("a", netsim.Profile{BlackHole: true})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		start := time.Now()
		var slow []time.Duration
		for range 500 {
			_, took := l.must(c, "x.example.")
			if time.Since(start) > time.Second && took > 30*ms {
				slow = append(slow, took)
			}
			time.Sleep(20 * ms)
		}
		assert.LessOrEqual(t, len(slow), 5, "%v", slow)
	})
}

func TestClientAsksNearestServerFirst(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", after(60*ms, good))
		b := l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		require.NoError(t, c.Warm(background))
		before := b.Queries.Load()
		for range 20 {
			_, took := l.must(c, "x.example.")
			assert.Equal(t, 20*ms, took)
		}
		assert.EqualValues(t, 20, b.Queries.Load()-before)
	})
}

func TestHedgeOffStillRetransmits(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(drop, drop, good))
		c := l.client(off(), l.up("udp", "a"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 3020*ms, took, "1 s, the second time twice as long")
		st := c.Stats()
		assert.EqualValues(t, 2, st.Resends)
		assert.Zero(t, st.Hedges)
	})
}

func TestClientSendsFourthQueryOverTCP(t *testing.T) {
	bubble(t, func(l *lab) {
		var mu sync.Mutex
		var nets []string
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			mu.Lock()
			defer mu.Unlock()
			nets = append(nets, q.Net)
			if q.Net == "udp" {
				return dnstest.Reply{}
			}
			return good(q)
		})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		l.must(c, "x.example.")
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []string{"udp", "udp", "udp", "tcp"}, nets, "RFC 9520 §3.1")
	})
}

func TestHedgeFixedNeedsNoBudget(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: 10 * ms}}, l.up("udp", "a"))
		for range 100 {
			l.must(c, "x.example.")
		}
		st := c.Stats()
		assert.EqualValues(t, 100, st.Hedges)
		assert.EqualValues(t, 200, st.Wire)
	})
}

func TestHedgesBecomeRareWithoutWins(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	// A single server needs 200 ms for a twelfth of the names, so hedges do not help.
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			var n int
			_, _ = fmt.Sscanf(q.Question[0].Name, "n%d.", &n)
			if n%12 == 0 {
				return after(200*ms, good)(q)
			}
			return good(q)
		})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		for i := range 4000 {
			l.must(c, fmt.Sprintf("n%d.example.", i))
		}
		before := c.Stats().Hedges
		for i := range 4000 {
			l.must(c, fmt.Sprintf("n%d.example.", i))
		}
		assert.LessOrEqual(t, c.Stats().Hedges-before, int64(4000*0.02))
	})
}

func TestClientDoesNotHedgeUniformlySlowServers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		l.link("a", netsim.Profile{Delay: netsim.Uniform(100*ms, 101*ms)})
		for range 2000 {
			l.must(c, "x.example.")
		}
		assert.LessOrEqual(t, c.Stats().Hedges, int64(0.005*2000)+2)
	})
}

// table runs a client over a link and returns the sorted latencies.
func table(l *lab, c *dnshedge.Client, n int) (took []time.Duration, failed int) {
	for i := range n {
		_, d, err := l.ask(c, fmt.Sprintf("n%d.example.", i%101))
		if err != nil {
			l.Log(err)
			failed++
			continue
		}
		took = append(took, d)
		time.Sleep(5 * ms)
	}
	slices.Sort(took)
	return took, failed
}

func at(took []time.Duration, q float64) time.Duration { return took[int(q*float64(len(took)-1))] }

func deviation(took []time.Duration) time.Duration {
	var sum, squares float64
	for _, d := range took {
		sum += float64(d)
	}
	mean := sum / float64(len(took))
	for _, d := range took {
		squares += (float64(d) - mean) * (float64(d) - mean)
	}
	return time.Duration(math.Sqrt(squares / float64(len(took))))
}

func TestHedgingShrinksTail(t *testing.T) {
	doubles.SkipSimulation(t)
	const n = 5050
	steady := netsim.Uniform(9500*time.Microsecond, 10500*time.Microsecond)
	for name, tc := range map[string]struct {
		there, back netsim.Profile
		check       func(t *testing.T, single, ours []time.Duration)
		extra       float64 // of n, besides the burst
	}{
		"loss 2% each way": {
			netsim.Profile{Delay: steady, Loss: 0.02}, netsim.Profile{Delay: steady, Loss: 0.02},
			func(t *testing.T, single, ours []time.Duration) {
				assert.LessOrEqual(t, at(ours, .99), at(single, .99)*25/100, "a lone query is sent again after 200 ms")
			}, 0.05,
		},
		"spikes": {
			netsim.Profile{Delay: netsim.Spikes(steady, 0.05, netsim.Uniform(40*ms, 140*ms))}, netsim.Profile{Delay: steady},
			func(t *testing.T, single, ours []time.Duration) {
				assert.LessOrEqual(t, at(ours, .99), at(single, .99)*63/100)
				assert.LessOrEqual(t, deviation(ours), deviation(single)*43/100)
				assert.LessOrEqual(t, at(ours, .5), at(single, .5)*102/100)
			}, 0.05,
		},
		"clean": {
			netsim.Profile{Delay: steady}, netsim.Profile{Delay: steady},
			func(t *testing.T, single, ours []time.Duration) {
				assert.LessOrEqual(t, at(ours, .99), at(single, .99)*103/100)
				assert.LessOrEqual(t, at(ours, .5), at(single, .5)*103/100)
			}, 0.005,
		},
		"uniformly slow": {
			netsim.Profile{Delay: netsim.Uniform(99*ms, 101*ms)}, netsim.Profile{Delay: netsim.Uniform(99*ms, 101*ms)},
			func(t *testing.T, single, ours []time.Duration) {
				assert.LessOrEqual(t, at(ours, .99), at(single, .99)*103/100)
			}, 0.005,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				l.serve("a", good)
				l.net.Link("client", "a").Set(tc.there)
				l.net.Link("a", "client").Set(tc.back)
				single, failed := table(l, l.client(off(), l.up("udp", "a")), n)
				c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
				ours, lost := table(l, c, n)
				assert.Zero(t, failed+lost)
				tc.check(t, single, ours)
				st := c.Stats()
				burst := 20.0
				if tc.extra < 0.01 {
					burst = 0
				}
				assert.LessOrEqual(t, float64(st.Wire-n), tc.extra*float64(st.Wire)+burst, "%+v", st)
				t.Logf("single: median %v p99 %v σ %v; ours: median %v p99 %v p99.9 %v σ %v, extra %.2f %%, %d hedges, %d won, %d denied, %d resends", at(single, .5), at(single, .99), deviation(single),
					at(ours, .5), at(ours, .99), at(ours, .999), deviation(ours), float64(st.Wire-n)/n*100, st.Hedges, st.HedgeWins, st.Denied, st.Resends)
			})
		})
	}
}
