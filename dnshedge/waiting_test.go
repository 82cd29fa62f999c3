package dnshedge_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

func TestMaxInFlightEndsOldestQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		c := l.client(&dnshedge.Client{MaxInFlight: 10, Cache: new(dnshedge.Cache)}, l.up("tcp", "a"))
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				_, took, err := l.ask(c, fmt.Sprintf("x%d.example.", i))
				if i >= 10 {
					assert.Equal(t, 5*time.Second, took)
					assert.NotErrorIs(t, err, dnshedge.ErrTooManyQuestions)
					return
				}
				assert.ErrorIs(t, err, dnshedge.ErrTooManyQuestions)
				assert.EqualError(t, err, fmt.Sprintf("dnshedge: x%d.example. A: dnshedge: too many questions wait for servers", i))
				assert.Equal(t, 100*ms, took, "ten came after it")
			})
			time.Sleep(10 * ms)
		}
		wg.Wait()
		assert.EqualValues(t, 10, c.Stats().Dropped)
	})
}

func TestMaxInFlightDisplacesDeadZoneFirst(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasSuffix(q.Question[0].Name, "dead.example.") {
				return dnstest.Reply{}
			}
			return good(q)
		})
		c := l.client(&dnshedge.Client{MaxInFlight: 200}, l.up("tcp", "a"))
		l.learn(c)
		var wg sync.WaitGroup
		var bad atomic.Int64
		for i := range 4000 { // a second of 4,000
			wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("x%d.dead.example.", i), dns.TypeA), "") })
			if i%40 == 0 {
				wg.Go(func() {
					_, took, err := l.ask(c, fmt.Sprintf("x%d.example.", i))
					if err != nil || took != 20*ms {
						bad.Add(1)
					}
				})
			}
			time.Sleep(250 * time.Microsecond)
		}
		wg.Wait()
		assert.Zero(t, bad.Load(), "of 100")
	})
}

func TestClientFlightCallersHaveTheirOwnTimeout(t *testing.T) {
	bubble(t, func(l *lab) {
		begin := time.Now()
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			if time.Since(begin) < 4800*ms {
				return dnstest.Reply{}
			}
			return good(q)
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, took, err := l.ask(c, "x.example.")
			assert.Error(t, err)
			assert.Equal(t, 5*time.Second, took)
		})
		time.Sleep(4990 * ms)
		_, took, err := l.ask(c, "x.example.")
		require.NoError(t, err)
		assert.LessOrEqual(t, took, 150*ms)
		wg.Wait()
	})
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), drop)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, took, err := l.ask(c, "x.example.")
				assert.Error(t, err)
				assert.Equal(t, 5*time.Second, took, "and no more")
			})
			time.Sleep(1500 * ms)
		}
		wg.Wait()
	})
}

func TestClientFlightAnswersAfterLeaderLeft(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), after(time.Second, good))
		s := &dnshedge.Server{Client: c}
		l.startServer(s)
		conn := l.connect("udp")
		require.NoError(t, conn.WriteMsg(question("x.example.", dns.TypeA)))
		time.Sleep(50 * ms)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, took := l.must(c, "x.example.")
			assert.Equal(t, 500*ms+1020*ms, took, "asked again when the leader left")
		})
		time.Sleep(500 * ms)
		ctx, cancel := context.WithCancel(background)
		cancel()
		start := time.Now()
		require.ErrorIs(t, s.Shutdown(ctx), context.Canceled)
		assert.Zero(t, time.Since(start))
		wg.Wait()
	})
}

func TestClientFlightDropsPartialResultOfLeader(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(rcode(dns.RcodeServerFailure), good))
		l.serve("b", drop)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
		s := &dnshedge.Server{Client: c}
		l.startServer(s)
		require.NoError(t, l.connect("udp").WriteMsg(question("x.example.", dns.TypeA)))
		time.Sleep(50 * ms)
		var wg sync.WaitGroup
		wg.Go(func() {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, dns.RcodeSuccess, r.Rcode)
		})
		time.Sleep(50 * ms)
		ctx, cancel := context.WithCancel(background)
		cancel()
		require.ErrorIs(t, s.Shutdown(ctx), context.Canceled)
		wg.Wait()
	})
}

func TestCacheRefreshesCostNoHedges(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	bubble(t, func(l *lab) {
		l.serve("a", with("30 A 192.0.2.1"))
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		for i := range 100 {
			l.must(c, fmt.Sprintf("warm%d.example.", i))
		}
		l.link("a", netsim.Profile{Loss: 0.01, Delay: netsim.Constant(10 * ms)})
		before := c.Stats()
		slow := 0
		for i := range 3000 { // 200 popular names, and a new one every 100 ms
			for j := range 20 {
				l.must(c, fmt.Sprintf("popular%d.example.", (j*10+i)%200))
			}
			if _, took := l.must(c, fmt.Sprintf("new%d.example.", i)); took > 150*ms {
				slow++
			}
			time.Sleep(100 * ms)
		}
		after := c.Stats()
		assert.Greater(t, after.Refreshes-before.Refreshes, int64(500))
		assert.LessOrEqual(t, slow, 6, "of 3000, of which 60 lost a packet")
		assert.LessOrEqual(t, after.Denied-before.Denied, int64(5))
	})
}

func TestClientMeasuresUnusedServer(t *testing.T) {
	for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			near := l.serve("b", good)
			l.link("a", netsim.Profile{Delay: netsim.Constant(45 * ms)})
			l.link("b", netsim.Profile{Delay: netsim.Constant(2 * ms)})
			c := l.client(&dnshedge.Client{Cache: cache}, l.up("udp", "a"), l.up("udp", "b"))
			for i := range 100 {
				l.must(c, fmt.Sprintf("x%d.example.", i))
			}
			assert.Greater(t, near.Queries.Load(), int64(85))
		})
	}
}

func TestClientExploresOnlyWithoutCallers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		slow := l.serve("b", good)
		l.link("b", netsim.Profile{Delay: netsim.Constant(100 * ms)})
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		require.NoError(t, c.Warm(background))
		for i := range 6 * 60 * 6 { // six hours
			time.Sleep(10 * time.Second)
			_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
			assert.Equal(t, 20*ms, took)
		}
		assert.InDelta(t, 6*60/5, slow.Queries.Load(), 10, "measured every five minutes")
	})
}

// The upstream of a Client forwards all questions to the same Client.
func TestClientEndsForwardingLoop(t *testing.T) {
	for _, typ := range []uint16{dns.TypeA, dns.TypeANY} {
		bubble(t, func(l *lab) {
			c := &dnshedge.Client{Cache: new(dnshedge.Cache)}
			s := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				r, _, err := c.Exchange(q.Msg, "")
				if err != nil {
					r = dnstest.Rcode(q, dns.RcodeServerFailure)
				}
				return dnstest.Reply{Msg: r}
			})
			l.client(c, l.up("udp", "a"))
			m := question("x.example.", typ)
			m.SetEdns0(1232, false)
			start := time.Now()
			_, _, err := c.Exchange(m, "")
			require.Error(t, err)
			assert.Equal(t, 5*time.Second, time.Since(start))
			time.Sleep(30 * time.Second)
			n := s.Queries.Load()
			assert.LessOrEqual(t, n, int64(16), dns.TypeToString[typ])
			time.Sleep(time.Minute)
			assert.Equal(t, n, s.Queries.Load(), dns.TypeToString[typ])
		})
	}
}

// Up to 4,000 questions a second are about names that no server answers, and 2,048 of them wait. On a busy machine,
// rejected questions also wait for a processor, so one good second of several suffices. The race detector uses more
// memory, but as many goroutines.
func TestMaxInFlightBoundsMemoryOfDeadZone(t *testing.T) {
	doubles.SkipSimulation(t)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: silent.LocalAddr().String()}}, Cache: new(dnshedge.Cache)}
	s := &dnshedge.Server{Client: c}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.ServePacket(pc) }()
	defer func() {
		ctx, cancel := context.WithCancel(background)
		cancel()
		_ = s.Shutdown(ctx) // at once
		_ = c.Close()
	}()
	asker, err := net.Dial("udp", pc.LocalAddr().String())
	require.NoError(t, err)
	defer asker.Close()
	asked := 0
	ask := func() {
		b, err := question(fmt.Sprintf("x%d.dead.example.com.", asked), dns.TypeA).Pack()
		require.NoError(t, err)
		_, err = asker.Write(b)
		require.NoError(t, err)
		if asked++; asked%4 == 0 {
			time.Sleep(ms)
		}
	}
	var m runtime.MemStats
	taken := func() uint64 {
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	heap()
	runtime.GC() // frees the stacks of ended goroutines
	before, others := taken(), runtime.NumGoroutine()
	for range 2500 {
		ask()
	}
	for range 10 {
		runtime.GC()
		goroutines, most := 0, uint64(0)
		for range 4000 {
			ask()
			goroutines = max(goroutines, runtime.NumGoroutine()-others)
			if asked%100 == 0 {
				most = max(most, taken())
			}
		}
		most -= min(most, before)
		t.Logf("%d kB in heap and stacks, %d goroutines at most", most>>10, goroutines)
		fair := uint64(goroutines) * (50 << 20) / 2048 // more goroutines are there for a moment, when questions come faster than others end
		if goroutines > 2048 && goroutines < 2048+1024 && (doubles.RaceEnabled || most <= fair) {
			return
		}
	}
	t.Fail()
}
