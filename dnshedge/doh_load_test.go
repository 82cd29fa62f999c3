package dnshedge_test

import (
	"context"
	"fmt"
	"net"
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
	"github.com/gohedge/hedge/internal/netsim"
)

// askEvery asks n questions at intervals of gap, and returns the number of questions without an answer.
func (l *lab) askEvery(c *dnshedge.Client, gap time.Duration, n int) (failed int64) {
	var count atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, _, err := c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), ""); err != nil {
				count.Add(1)
			}
		})
		time.Sleep(gap)
	}
	wg.Wait()
	return count.Load()
}

// More questions are in flight than a connection of HTTPS has streams for.
func TestClientAnswersAllQuestionsOfASlowServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for _, network := range networks {
		bubble(t, func(l *lab) {
			s := l.serve("a", after(800*ms, good))
			c := l.client(new(dnshedge.Client), l.up(network, "a"))
			const n = 2000
			assert.Zero(t, l.askEvery(c, 5*ms, n), network)
			assert.LessOrEqual(t, s.Queries.Load(), int64(n*106/100), network)
			assert.LessOrEqual(t, s.Conns.Load(), int64(8), network)
			if network == "https" {
				assert.GreaterOrEqual(t, s.Conns.Load(), int64(2), network)
			}
		})
	}
}

// openHTTPS starts an HTTPS server on a host, and counts its open connections.
func openHTTPS(l *lab, s *dnstest.Server, host string) *loadedListener {
	ln, err := l.net.Host(host).Listen("tcp", ":443")
	require.NoError(l, err)
	o := &loadedListener{Listener: ln}
	l.Cleanup(s.Close)
	s.ServeHTTPS(o)
	return o
}

func TestClientClosesFurtherHTTPSConnectionsWhenIdle(t *testing.T) {
	bubble(t, func(l *lab) {
		o := openHTTPS(l, &dnstest.Server{Handler: after(800*ms, good)}, "a")
		c := l.client(off(), l.up("https", "a"))
		assert.Zero(t, l.askEvery(c, 2*ms, 1500))
		assert.GreaterOrEqual(t, o.most.Load(), int64(4))
		for i := range 40 {
			time.Sleep(500 * ms)
			l.must(c, fmt.Sprintf("y%d.example.", i))
		}
		assert.EqualValues(t, 1, o.open.Load())
		time.Sleep(15 * time.Second)
		assert.Zero(t, o.open.Load())
	})
}

// A server permits few streams, and no more connections than the Client opens at most. It answers as many questions as
// it can, and the others fail at once.
func TestClientFailsAtOnceWithoutFreeHTTPSStream(t *testing.T) {
	bubble(t, func(l *lab) {
		s := &dnstest.Server{Handler: after(800*ms, good), Streams: 2}
		o := openHTTPS(l, s, "a")
		c := l.client(off(), l.up("https", "a"))
		const n = 3000 // of which 64 streams answer 80 a second
		failed := l.askEvery(c, 5*ms, n)
		assert.LessOrEqual(t, o.most.Load(), int64(2*32+2))
		assert.Greater(t, n-failed, int64(60*15), "no stream is used for a question whose time is nearly up")
		assert.LessOrEqual(t, s.Queries.Load(), (n-failed)*115/100)
	})
}

// A server accepts only one connection of a client.
func TestClientUsesSingleHTTPSConnectionOfServer(t *testing.T) {
	bubble(t, func(l *lab) {
		s := &dnstest.Server{Handler: after(800*ms, good)}
		o := openHTTPS(l, s, "a")
		o.limit = 1
		c := l.client(off(), l.up("https", "a"))
		assert.Zero(t, l.askEvery(c, 9*ms, 1000))
	})
}

// A server accepts four connections of a client, and closes the others, of which several are opened at once.
func TestClientObservesHTTPSConnectionLimitOfServer(t *testing.T) {
	bubble(t, func(l *lab) {
		o := openHTTPS(l, &dnstest.Server{Handler: after(200*ms, good), Streams: 1}, "a")
		o.limit = 4
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "first.example.")
		assert.Zero(t, l.askEvery(c, 3*ms, 50))
	})
}

// A caller gives up while its question opens a further connection, which other questions then use.
func TestClientKeepsHTTPSDialAfterFirstCallerLeaves(t *testing.T) {
	bubble(t, func(l *lab) {
		o := openHTTPS(l, &dnstest.Server{Handler: after(800*ms, good), Streams: 1}, "a")
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "first.example.")
		var first sync.WaitGroup
		first.Go(func() { l.must(c, "second.example.") })
		time.Sleep(ms)
		ctx, cancel := context.WithTimeout(background, 10*ms)
		defer cancel()
		_, _, err := c.ExchangeContext(ctx, question("abandoned.example.", dns.TypeA), "")
		require.Error(l, err)
		start := time.Now()
		l.must(c, "third.example.")
		assert.Less(t, time.Since(start), 900*ms)
		first.Wait()
		assert.EqualValues(t, 2, o.most.Load())
	})
}

// Callers give up again and again while the server ignores further connections. Only these callers wait for a
// connection, and the others get answers.
func TestClientWaitsOnceForIgnoredHTTPSConnection(t *testing.T) {
	bubble(t, func(l *lab) {
		o := openHTTPS(l, &dnstest.Server{Handler: after(200*ms, good), Streams: 1}, "a")
		c := off()
		l.client(c, l.up("https", "a"))
		hanging := &hangingDialer{Dialer: c.Dialer, free: 1}
		c.Dialer = hanging
		l.must(c, "first.example.")
		failed := 0
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range 20 {
			for j := range 2 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(background, 700*ms)
					defer cancel()
					_, _, err := c.ExchangeContext(ctx, question(fmt.Sprintf("x%d-%d.example.", i, j), dns.TypeA), "")
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						failed++
					}
				})
				time.Sleep(ms)
			}
			time.Sleep(800 * ms)
		}
		all.Wait()
		assert.LessOrEqual(t, failed, 4)
		assert.EqualValues(t, 1, o.most.Load())
	})
}

// hangingDialer opens a number of connections. Later dials hang until ctx ends.
type hangingDialer struct {
	dnshedge.Dialer
	free int64
	n    atomic.Int64
}

func (d *hangingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.n.Add(1) > d.free {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Dialer.DialContext(ctx, network, address)
}

// loadedListener is a listener that counts its open connections. It closes connections above its limit at once.
type loadedListener struct {
	net.Listener
	limit      int64 // 0: none
	open, most atomic.Int64
}

func (o *loadedListener) Accept() (net.Conn, error) {
	for {
		c, err := o.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := o.open.Add(1)
		if o.limit > 0 && n > o.limit {
			o.open.Add(-1)
			_ = c.Close()
			continue
		}
		o.most.Store(max(o.most.Load(), n))
		return &loadedConn{Conn: c, o: o}, nil
	}
}

type loadedConn struct {
	net.Conn
	o    *loadedListener
	once sync.Once
}

func (c *loadedConn) Close() error {
	c.once.Do(func() { c.o.open.Add(-1) })
	return c.Conn.Close()
}

// A server permits one stream for each connection, and becomes slow. The Client then finds out by a question of its own
// whether a silent connection is dead, and has no stream for that question.
func TestClientOpensHTTPSConnectionsWhileServerIsSlow(t *testing.T) {
	bubble(t, func(l *lab) {
		slow := time.Now().Add(time.Second)
		openHTTPS(l, &dnstest.Server{Handler: switchable(slow, good, after(time.Second, good)), Streams: 1}, "a")
		c := l.client(off(), l.up("https", "a"))
		for i := range 8 {
			l.must(c, fmt.Sprintf("known%d.example.", i))
		}
		time.Sleep(time.Until(slow))
		assert.Zero(t, l.askEvery(c, 7*ms, 30))
		assert.LessOrEqual(t, time.Since(slow), 4*time.Second)
	})
}

// Questions about one zone are slow, and use up all streams of a server. The other questions are answered over further
// connections.
func TestClientAnswersHTTPSQuestionsBesideManySlowOnes(t *testing.T) {
	for name, streams := range map[string]int{"one stream": 1, "two streams": 2, "HTTP/1.1": 0} {
		for _, isConnected := range []bool{true, false} {
			bubble(t, func(l *lab) {
				openHTTPS(l, &dnstest.Server{Handler: slowZone, Streams: streams, HTTP1: streams == 0}, "a")
				c := l.client(off(), l.up("https", "a"))
				if isConnected {
					l.must(c, "first.example.")
				}
				l.askBesideSlowOnes(c, 24, 1, "%s, connected: %v", name, isConnected)
			})
		}
	}
}

// The question that opens the first connection of a server without HTTP/2 is given up during the handshake. net/http then
// reports to nobody that the connection is new.
func TestClientMovesHTTPSQuestionsAfterFirstCallerLeaves(t *testing.T) {
	bubble(t, func(l *lab) {
		openHTTPS(l, &dnstest.Server{Handler: slowZone, HTTP1: true}, "a")
		c := l.client(off(), l.up("https", "a"))
		ctx, cancel := context.WithTimeout(background, 30*ms)
		defer cancel()
		_, _, err := c.ExchangeContext(ctx, question("abandoned.example.", dns.TypeA), "")
		require.ErrorIs(l, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		l.askBesideSlowOnes(c, 8, 4)
	})
}

// A server that had HTTP/2 is replaced by one without.
func TestClientMovesHTTPSQuestionsAfterServerLosesHTTP2(t *testing.T) {
	bubble(t, func(l *lab) {
		s := &dnstest.Server{Handler: good}
		openHTTPS(l, s, "a")
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "first.example.")
		s.Close()
		openHTTPS(l, &dnstest.Server{Handler: slowZone, HTTP1: true}, "a")
		time.Sleep(time.Second)
		l.askBesideSlowOnes(c, 8, 4)
	})
}

// A server without HTTP/2 is replaced by one that has it. The Client then needs no more than one connection again, and may
// have more than 32 questions in flight.
func TestClientUsesAllStreamsAfterServerGetsHTTP2(t *testing.T) {
	bubble(t, func(l *lab) {
		s := &dnstest.Server{Handler: good, HTTP1: true}
		openHTTPS(l, s, "a")
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "first.example.")
		s.Close()
		o := openHTTPS(l, &dnstest.Server{Handler: after(800*ms, good)}, "a")
		time.Sleep(time.Second)
		assert.Zero(t, l.askEvery(c, 4*ms, 700))
		assert.LessOrEqual(t, o.open.Load(), int64(4))
	})
}

// askBesideSlowOnes asks n questions. slowZone answers them after three seconds, except for the one with the index quick,
// which must be answered soon. condition says which condition the lab has, for the message of a failure.
func (l *lab) askBesideSlowOnes(c *dnshedge.Client, n, quick int, condition ...any) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if i != quick {
				l.must(c, fmt.Sprintf("x%d.slow.example.", i))
				return
			}
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(l, took, 300*ms, condition...)
		})
		time.Sleep(3 * ms)
	}
	all.Wait()
}

// Messages that must not be sent twice wait for the first connection of a server without HTTP/2. They are sent over other
// connections, although the first one is free again at once: the server is on the same host.
func TestClientSendsUpdatesOnceWhenHTTP1ConnectionOpens(t *testing.T) {
	var received atomic.Int64
	s := &dnstest.Server{HTTP1: true, Handler: func(q dnstest.Query) dnstest.Reply {
		received.Add(1)
		return good(q)
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	s.ServeHTTPS(ln)
	up, err := dnshedge.ParseUpstream("https://" + ln.Addr().String() + "#" + dnstest.Name)
	require.NoError(t, err)
	_, trusting := dnstest.Certificate()
	const rounds, messages = 20, 20
	for range rounds {
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}, TLSConfig: trusting, Timeout: 20 * time.Second}
		var all sync.WaitGroup
		for range messages {
			all.Go(func() {
				_, _, err := c.Exchange(message(dns.OpcodeUpdate), "")
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.EqualValues(t, messages, c.Stats().Wire)
		c.Close()
	}
	assert.EqualValues(t, rounds*messages, received.Load())
}

// slowZone is a handler that needs three seconds to answer questions about a zone.
func slowZone(q dnstest.Query) dnstest.Reply {
	if strings.HasSuffix(q.Question[0].Name, ".slow.example.") {
		return after(3*time.Second, good)(q)
	}
	return good(q)
}

// Slow questions leave one stream of a connection free, over which other questions are answered one after the other.
func TestClientOpensHTTPSConnectionWhenQuestionsWaitForSingleStream(t *testing.T) {
	bubble(t, func(l *lab) {
		o := openHTTPS(l, &dnstest.Server{Handler: slowZone, Streams: 8}, "a")
		c := l.client(off(), l.up("https", "a"))
		l.must(c, "first.example.")
		var all sync.WaitGroup
		for i := range 7 {
			all.Go(func() { l.must(c, fmt.Sprintf("x%d.slow.example.", i)) })
		}
		time.Sleep(ms)
		for i := range 16 {
			all.Go(func() {
				_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.LessOrEqual(t, took, 250*ms)
			})
		}
		time.Sleep(200 * ms)
		assert.LessOrEqual(t, o.most.Load(), int64(3), "one of them for retransmissions")
		all.Wait()
	})
}

// A connection has ended, because it was idle or the server restarts. The next questions wait for a handshake of two
// round trips, which takes longer than the hedge delay. They are sent once, over one new connection.
func TestClientSendsQuestionsOnceAfterConnectionEnds(t *testing.T) {
	for _, network := range []string{"tls", "https"} {
		for name, end := range map[string]func(*dnstest.Server){"idle": func(*dnstest.Server) {}, "restart": (*dnstest.Server).CloseConns} {
			bubble(t, func(l *lab) {
				s := l.serve("a", good)
				l.link("a", netsim.Profile{Delay: netsim.Constant(50 * ms)})
				c := l.client(new(dnshedge.Client), l.up(network, "a"))
				l.learn(c)
				for range 3 {
					end(s)
					time.Sleep(15 * time.Second)
					before, conns := c.Stats(), s.Conns.Load()
					assert.Zero(t, l.askEvery(c, 120*ms, 2), "the handshake goes on when the second question comes")
					st := c.Stats()
					assert.EqualValues(t, 2, st.Wire-before.Wire, "%s, %s", network, name)
					assert.Equal(t, before.Hedges+before.Resends, st.Hedges+st.Resends, "%s, %s", network, name)
					assert.EqualValues(t, 1, s.Conns.Load()-conns, "%s, %s", network, name)
				}
			})
		}
	}
}
