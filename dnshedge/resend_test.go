package dnshedge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// load asks n questions, every apart, and returns how many queries the server got for each.
func (l *lab) load(s *dnstest.Server, c *dnshedge.Client, n int, every time.Duration) float64 {
	var wg sync.WaitGroup
	before := s.Queries.Load()
	for i := range n {
		wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "") })
		time.Sleep(every)
	}
	wg.Wait()
	return float64(s.Queries.Load()-before) / float64(n)
}

func TestClientDoesNotRetransmitToSlowServer(t *testing.T) {
	doubles.SkipSimulation(t)
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		for _, d := range []time.Duration{1500 * ms, 3 * time.Second, 4500 * ms} {
			bubble(t, func(l *lab) {
				s := l.serve("a", after(d, good))
				c := l.client(&dnshedge.Client{}, l.up(network, "a"))
				const n = 1000
				every := 20 * ms
				if network == "https" {
					every = 60 * ms // A connection carries 99 requests at a time. A request that waits longer than a timeout is sent over another.
				}
				got := l.load(s, c, n, every)
				st := c.Stats()
				assert.LessOrEqual(t, st.Resends, int64(30), "%s, %v: what is saved up finds out how slow it is", network, d)
				assert.LessOrEqual(t, got, 1.05+20.0/n, "%s, %v: the budget and its burst", network, d)
				// And then no more.
				before := st.Resends
				got = l.load(s, c, n, every)
				assert.LessOrEqual(t, got, 1.05, "%s, %v", network, d)
				assert.LessOrEqual(t, c.Stats().Resends-before, int64(2), "%s, %v", network, d)
			})
		}
	}
}

// A server that drops queries gets one retransmission for each response, 20 more, and as many as the hedge budget
// permits.
func TestRetransmissionsArePaidForByAnswers(t *testing.T) {
	doubles.SkipSimulation(t)
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		for _, answered := range []float64{0, 0.02, 0.1, 0.5} {
			bubble(t, func(l *lab) { l.resendsArePaidFor(network, answered) })
		}
	}
}

func (l *lab) resendsArePaidFor(network string, answered float64) {
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	probes := 0
	s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if q.Question[0].Name == "." {
			probes++
		}
		if r.Float64() >= answered {
			return dnstest.Reply{}
		}
		return good(q)
	})
	c := l.client(&dnshedge.Client{}, l.up(network, "a"))
	const n = 2000
	got := l.load(s, c, n, 10*ms)
	st := c.Stats()
	mu.Lock()
	defer mu.Unlock()
	got -= float64(probes) / n
	budget := 1.05*(1+answered) + (20+20)/float64(n) // both bursts
	assert.LessOrEqual(l, got, budget+answered*(1+answered), "%s, %.0f %% answered", network, 100*answered)
	assert.LessOrEqual(l, probes, 100, "%s, %.0f %% answered", network, 100*answered)
	l.Logf("%s, %.0f %% answered: %.2f queries a question, %d hedges, %d resends, %d probes, %d connections", network, 100*answered, got, st.Hedges, st.Resends, probes, s.Conns.Load())
}

// times returns when the queries for a name come, and drops the first n of them.
func times(name string, n int) (*[]time.Time, dnstest.Handler) {
	var mu sync.Mutex
	all := new([]time.Time)
	return all, func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if q.Question[0].Name != name {
			return good(q)
		}
		if *all = append(*all, time.Now()); len(*all) <= n {
			return dnstest.Reply{}
		}
		return good(q)
	}
}

func TestRetransmissionTimeoutFollowsRFC6298(t *testing.T) {
	for _, oneWay := range []time.Duration{10 * ms, 150 * ms} {
		bubble(t, func(l *lab) {
			l.link("a", netsim.Profile{Delay: netsim.Constant(oneWay)})
			seen, h := times("lost.example.", 2)
			l.serve("a", h)
			c := l.client(off(), l.up("udp", "a"))
			l.learn(c)
			start := time.Now()
			l.must(c, "lost.example.")
			timeout := max(200*ms, 2*oneWay*5/4) // the variance is nothing after 40 answers
			for i, want := range []time.Duration{0, timeout, 3 * timeout} {
				assert.InDelta(t, want+oneWay, (*seen)[i].Sub(start), float64(timeout/16), "query %d", i)
			}
		})
	}
}

func TestRetransmissionTimeoutGrowsWithDeviation(t *testing.T) {
	bubble(t, func(l *lab) {
		var n atomic.Int64
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			return after(time.Duration(n.Add(1)%2)*200*ms, good)(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		for range 200 {
			l.must(c, "x.example.")
		}
		assert.Zero(t, c.Stats().Resends, "srtt 120 ms and four times 100 ms")
	})
}

func TestClientRetransmitsFirstPacketAfterASecond(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(drop, good))
		c := l.client(off(), l.up("udp", "a"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 1020*ms, took, "RFC 6298 §2.1")
	})
}

func TestClientAnswersAllQuestionsOverLossyPath(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.link("a", netsim.Profile{Delay: netsim.Constant(10 * ms), Loss: 0.05})
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		failed := 0
		const n = 10_000
		for i := range n {
			if _, _, err := l.ask(c, fmt.Sprintf("x%d.example.", i)); err != nil {
				failed++
			}
		}
		st := c.Stats()
		assert.LessOrEqual(t, failed, 3, "a tenth of the queries is lost, and so all four in one of ten thousand questions")
		assert.LessOrEqual(t, st.Wire, int64(1.13*n), "%+v", st)
	})
}

func TestClientDoesNotBlameServerForLackOfDescriptors(t *testing.T) {
	var dials atomic.Int64
	d := dialFunc(func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	})
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}, Cache: new(dnshedge.Cache), Dialer: d}
	defer c.Close()
	for range 5 {
		before := dials.Load()
		_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
		require.ErrorIs(t, err, syscall.EMFILE)
		assert.Greater(t, dials.Load(), before, "the failure is not the name's, and so it is not kept")
	}
	assert.False(t, c.Stats().Upstreams[0].Silent)
}

type dialFunc func(context.Context, string, string) (net.Conn, error)

func (f dialFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

func TestClientDeadServerDoesNotDelayOther(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("b", good)
		l.link("a", netsim.Profile{BlackHole: true})
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.LessOrEqual(t, took, 1020*ms, "the timeout before anything is known")
			})
			time.Sleep(ms)
		}
		wg.Wait()
	})
}

func TestClientKeepsAttemptForRecoveredNetwork(t *testing.T) {
	for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			c := l.client(&dnshedge.Client{Hedge: hedge}, l.up("udp", "a"))
			l.learn(c)
			l.link("a", netsim.Profile{BlackHole: true})
			time.AfterFunc(750*ms, func() { l.link("a", path20) })
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, 1500*ms)
		})
	}
}

func TestClientDoesNotRetransmitOverActiveStream(t *testing.T) {
	for network, want := range map[string]int64{"udp": 1, "tcp": 0, "tls": 0, "https": 0} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "slow.example." {
					return after(500*ms, good)(q)
				}
				return good(q)
			})
			c := l.client(off(), l.up(network, "a"))
			l.learn(c)
			var wg sync.WaitGroup
			wg.Go(func() { l.must(c, "slow.example.") })
			for range 40 {
				time.Sleep(20 * ms)
				l.must(c, "x.example.")
			}
			wg.Wait()
			assert.Equal(t, want, c.Stats().Resends, network)
		})
	}
}

// This test runs in real time, but it only counts queries and measures no durations.
func TestClientHedgesLostPacketInBusyProcess(t *testing.T) {
	up := local(t, "udp", func(q dnstest.Query) dnstest.Reply {
		if q.Question[0].Name == "lost.example." {
			return after(2*time.Second, good)(q)
		}
		return good(q)
	})
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}}
	defer c.Close()
	for range 100 {
		_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
		require.NoError(t, err)
	}
	before := c.Stats().Hedges
	var quit atomic.Bool
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !quit.Load() {
			}
		})
	}
	_, _, err := c.Exchange(question("lost.example.", dns.TypeA), "")
	quit.Store(true)
	wg.Wait()
	require.NoError(t, err)
	assert.Positive(t, c.Stats().Hedges-before, "however late the timers are")
}

// The socket buffer of a server holds some hundred queries, and further queries of the same burst are lost.
func TestClientRetransmitsHalfLostBurst(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, 200 * ms} {
		bubble(t, func(l *lab) {
			const n = 200
			var lost atomic.Int64
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "x") && lost.Add(1) <= n/2 {
					return dnstest.Reply{}
				}
				return good(q)
			})
			c := l.client(off(), l.up("udp", "a"))
			if timeout < time.Second {
				l.learn(c)
			}
			before := s.Queries.Load()
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
					assert.LessOrEqual(t, took, timeout+20*ms)
				})
			}
			wg.Wait()
			assert.EqualValues(t, n+n/2, s.Queries.Load()-before)
		})
	}
}
