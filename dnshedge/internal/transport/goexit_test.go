package transport_test

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
)

// exitingDialer calls runtime.Goexit while exits is positive, and decrements it.
type exitingDialer struct {
	usercode.Dialer
	exits, dials atomic.Int64
}

func (d *exitingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.dials.Add(1)
	if d.exits.Add(-1) >= 0 {
		runtime.Goexit()
	}
	return d.Dialer.DialContext(ctx, network, address)
}

// runExiting is runNetwork with a transport whose Dialer may call runtime.Goexit.
func runExiting(t *testing.T, protocol string, h dnstest.Handler, f func(t *testing.T, d *exitingDialer, client transport.Transport)) {
	d := new(exitingDialer)
	runNetwork(t, protocol, h, func(c *transport.Config) {
		d.Dialer = c.Dialer
		c.Dialer = d
	}, func(t *testing.T, client transport.Transport) { f(t, d, client) })
}

func TestTransportDialerGoexitEndsQuery(t *testing.T) {
	for protocol := range handshakes {
		runExiting(t, protocol, success, func(t *testing.T, d *exitingDialer, client transport.Transport) {
			d.exits.Store(1)
			checkGoexit(t, protocol, client)
		})
	}
}

func TestProtocolDialGoexitEndsQuery(t *testing.T) {
	s := &fakeServer{accept: func(_ context.Context, number int) error {
		if number == 1 {
			runtime.Goexit()
		}
		return nil
	}}
	runFake(t, s, func(t *testing.T, client transport.Transport) { checkGoexit(t, "fake", client) })
}

// checkGoexit sends two questions. The first dial calls runtime.Goexit, and the second one succeeds.
func checkGoexit(t *testing.T, protocol string, client transport.Transport) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	_, _, err := client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
	assert.Error(t, err, protocol)
	assert.Zero(t, time.Since(start), protocol)
	_, _, err = client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
	assert.NoError(t, err, protocol)
}

// The Dialer ends the goroutines of many queries over UDP.
func TestDatagramsUseOwnSocketsAfterGoexit(t *testing.T) {
	runExiting(t, "udp", success, func(t *testing.T, d *exitingDialer, client transport.Transport) {
		exitQueries(d, client, 150)
		for range 40 {
			sendQuestion(t, client, "x.example.")
		}
		assert.EqualValues(t, 190, d.dials.Load(), "at most 32 sockets are shared")
	})
}

// So many queries wait that further ones share sockets. The Dialer ends the goroutines of some of these.
func TestDatagramsShareSocketsAfterGoexit(t *testing.T) {
	slow := func(q dnstest.Query) dnstest.Reply {
		r := success(q)
		if q.Question[0].Name == "slow.example." {
			r.Delay = 10 * time.Second
		}
		return r
	}
	runExiting(t, "udp", slow, func(t *testing.T, d *exitingDialer, client transport.Transport) {
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() { sendQuestion(t, client, "slow.example.") })
		}
		time.Sleep(time.Second)
		exitQueries(d, client, 40)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
		assert.NoError(t, err)
		wg.Wait()
	})
}

// exitQueries sends n queries whose goroutines d ends.
func exitQueries(d *exitingDialer, client transport.Transport, n int) {
	d.exits.Store(int64(n))
	for range n {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _, _ = client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
		}()
		<-ended
		cancel()
	}
}

// A countingOwner counts the queries that were written.
type countingOwner struct {
	owner
	queries atomic.Int64
}

func (o *countingOwner) RecordQuery() { o.queries.Add(1) }

// A function of the TLS configuration ends the goroutine of a handshake. The connection must not be used without TLS.
func TestTLSGoexitEndsQuery(t *testing.T) {
	for _, guarded := range []bool{true, false} { // Client guards its configuration
		for _, protocol := range []string{"tls", "https"} {
			if protocol == "https" && !guarded {
				continue // net/http waits for ever
			}
			handshakes, o := 0, new(countingOwner)
			runNetwork(t, protocol, success, func(c *transport.Config) {
				c.Owner = o
				c.TLS.VerifyConnection = func(tls.ConnectionState) error {
					if handshakes++; handshakes == 1 {
						runtime.Goexit()
					}
					return nil
				}
				if guarded {
					usercode.GuardTLS(c.TLS)
				}
			}, func(t *testing.T, client transport.Transport) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, _, err := client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
				assert.Error(t, err, protocol)
				assert.LessOrEqual(t, time.Since(start), 100*time.Millisecond, protocol)
				assert.Zero(t, o.queries.Load(), protocol)
				assert.False(t, client.Ready(), protocol)
				_, _, err = client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
				assert.NoError(t, err, protocol)
			})
		}
	}
}

// The Exchange of a registered protocol ends its goroutine.
func TestProtocolExchangeGoexitEndsQuery(t *testing.T) {
	exits := true
	s := &fakeServer{answer: func(context.Context, *fakeServerConn) error {
		if exits {
			exits = false
			runtime.Goexit()
		}
		return nil
	}}
	runFake(t, s, func(t *testing.T, client transport.Transport) { checkGoexit(t, "fake", client) })
}
