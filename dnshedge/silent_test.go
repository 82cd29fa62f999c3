package dnshedge_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
)

// forgetful is a Dialer through a router that forgets open connections, as if it restarted. Data over a forgotten
// connection is lost in both directions, without an error.
type forgetful struct {
	dnshedge.Dialer
	age  atomic.Int64 // generation of the connections that work; forget increments it
	hole atomic.Bool  // new connections do not open, and no data arrives
}

func (f *forgetful) forget() { f.age.Add(1) }

func (f *forgetful) DialContext(ctx context.Context, network, at string) (net.Conn, error) {
	for again := time.Second; f.hole.Load(); again *= 2 { // as the kernel does
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c, err := f.Dialer.DialContext(ctx, network, at)
	if err != nil {
		return nil, err
	}
	return &forgottenConn{c, f, f.age.Load()}, nil
}

type forgottenConn struct {
	net.Conn
	f   *forgetful
	age int64
}

func (c *forgottenConn) works() bool { return c.age == c.f.age.Load() && !c.f.hole.Load() }

func (c *forgottenConn) Write(b []byte) (int, error) {
	if !c.works() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *forgottenConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || c.works() {
			return n, err
		}
	}
}

var streams = []string{"tcp", "tls", "https"}

// A router forgets the connections of a busy client. Each question that was in flight on them is answered over another
// connection.
func TestClientAnswersQuestionsOfSilentConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for _, network := range streams {
		for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
			for _, every := range []time.Duration{5 * ms, 50 * ms, 700 * ms} {
				bubble(t, func(l *lab) {
					s := l.serve("a", good)
					c := l.client(&dnshedge.Client{Hedge: hedge}, l.up(network, "a"))
					f := &forgetful{Dialer: c.Dialer}
					c.Dialer = f
					const n = 400
					var wg sync.WaitGroup
					var failed atomic.Int64
					var mu sync.Mutex // guards longest
					var longest time.Duration
					for i := range n {
						if i == n/2 {
							f.forget()
						}
						wg.Go(func() {
							_, took, err := c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
							if err != nil {
								failed.Add(1)
							}
							mu.Lock()
							defer mu.Unlock()
							longest = max(longest, took)
						})
						time.Sleep(every)
					}
					wg.Wait()
					assert.Zero(t, failed.Load(), "%s, %+v, one in %v", network, hedge, every)
					assert.LessOrEqual(t, longest, 450*ms, "%s, %+v, one in %v: two timeouts at most", network, hedge, every)
					assert.LessOrEqual(t, s.Queries.Load(), int64(1.05*n), "%s, %+v, one in %v", network, hedge, every)
				})
			}
		}
	}
}

// For three seconds, the router forgets every connection soon after it was opened, or drops all packets.
func TestClientRetransmitsOverStreamWhileTimeRemains(t *testing.T) {
	for _, network := range streams {
		for _, hedge := range []dnshedge.Hedge{{}, {Off: true}} {
			for _, every := range []time.Duration{30 * ms, 110 * ms, 150 * ms, 3 * time.Second} {
				bubble(t, func(l *lab) {
					l.serve("a", good)
					c := l.client(&dnshedge.Client{Hedge: hedge, Timeout: 10 * time.Second}, l.up(network, "a"))
					f := &forgetful{Dialer: c.Dialer}
					c.Dialer = f
					l.learn(c)
					f.forget()
					f.hole.Store(every == 3*time.Second)
					go func() {
						for range 3 * time.Second / every {
							time.Sleep(every)
							f.forget()
						}
						f.hole.Store(false)
					}()
					_, took, err := l.ask(c, "x.example.")
					assert.NoError(t, err, "%s, %+v, forgotten after %v", network, hedge, every)
					assert.LessOrEqual(t, took, 7*time.Second, "%s, %+v, forgotten after %v", network, hedge, every)
					time.Sleep(5 * time.Second)
				})
			}
		}
	}
}
