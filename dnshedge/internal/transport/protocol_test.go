package transport_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
)

// server is the other end of the protocol fake. Each test sets its own.
var server *fakeServer

func init() {
	transport.RegisterProtocol(transport.Scheme{Name: "fake"}, func(ctx context.Context, _ *transport.Config) (transport.MessageConn, error) {
		return server.dial(ctx)
	})
}

// A fakeServer accepts connections and answers queries at once, unless its functions say otherwise.
type fakeServer struct {
	accept func(ctx context.Context, number int) error        // before a connection is accepted; the first has the number 1
	answer func(ctx context.Context, c *fakeServerConn) error // before a query is answered

	mu    sync.Mutex
	dials int
	conns []*fakeServerConn
}

type fakeServerConn struct {
	number              int
	queries             int           // so far
	inFlight, maxFlight int           // queries that wait for a response, and the highest number of them
	streams             chan struct{} // a semaphore for two queries
	done                chan struct{}
	closeOnce           sync.Once
	onClose             func()
}

func (s *fakeServer) dial(ctx context.Context) (transport.MessageConn, error) {
	s.mu.Lock()
	s.dials++
	c := &fakeServerConn{number: s.dials, streams: make(chan struct{}, 2), done: make(chan struct{})}
	s.mu.Unlock()
	if s.accept != nil {
		if err := s.accept(ctx, c.number); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
	return c, nil
}

func (c *fakeServerConn) count(change int) {
	server.mu.Lock()
	defer server.mu.Unlock()
	c.queries += max(change, 0)
	c.inFlight += change
	c.maxFlight = max(c.maxFlight, c.inFlight)
}

func (c *fakeServerConn) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	c.count(1)
	defer c.count(-1)
	if server.answer != nil {
		if err := server.answer(ctx, c); err != nil {
			return nil, err
		}
	}
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	return dnstest.Rcode(dnstest.Query{Msg: m}, dns.RcodeSuccess).Pack()
}

func (c *fakeServerConn) Done() <-chan struct{} { return c.done }

func (c *fakeServerConn) Close() error {
	c.closeOnce.Do(func() {
		close(c.done)
		if c.onClose != nil {
			c.onClose()
		}
	})
	return nil
}

func (c *fakeServerConn) isClosed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runFake runs f in fake time with a transport to the server s.
func runFake(t *testing.T, s *fakeServer, f func(t *testing.T, client transport.Transport)) {
	synctest.Test(t, func(t *testing.T) {
		server = s
		scheme, ok := transport.FindScheme("fake")
		require.True(t, ok)
		client := scheme.New(transport.Config{Owner: new(owner), Size: 1232})
		defer client.Close()
		f(t, client)
	})
}

// sendQueries sends n queries at the same time. wait returns when all have been answered.
func sendQueries(t *testing.T, client transport.Transport, n int) (wait func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, _, err := client.Exchange(context.Background(), wire.RootServers, 0, new(transport.QueryPath))
			assert.NoError(t, err)
		})
	}
	synctest.Wait()
	return wg.Wait
}

// The queries that wait for a connection do not exceed its limit when it opens.
func TestProtocolConnectionsHaveLimitOfQueries(t *testing.T) {
	s := &fakeServer{
		accept: func(ctx context.Context, _ int) error { return sleep(ctx, 20*time.Millisecond) },
		answer: func(ctx context.Context, _ *fakeServerConn) error { return sleep(ctx, time.Second) },
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		sendQueries(t, client, 250)()
		require.Len(t, s.conns, 3)
		for _, c := range s.conns {
			assert.LessOrEqual(t, c.maxFlight, 100)
		}
	})
}

// A query that waits for a further connection takes the open one as soon as that has room.
func TestProtocolQueryTakesOpenConnectionWhileDialHangs(t *testing.T) {
	s := &fakeServer{
		accept: func(ctx context.Context, number int) error {
			if number == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		},
		answer: func(ctx context.Context, _ *fakeServerConn) error { return sleep(ctx, time.Second) },
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		waitForFirst := sendQueries(t, client, 100)
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		sendQueries(t, client, 50)()
		assert.Equal(t, 1900*time.Millisecond, time.Since(start))
		waitForFirst()
		assert.Len(t, s.conns, 1)
	})
}

// A server permits no further query for a moment. A minute later, a connection has as many queries as before.
func TestProtocolConnectionLimitRecovers(t *testing.T) {
	var stalled atomic.Bool
	s := &fakeServer{answer: func(ctx context.Context, _ *fakeServerConn) error {
		if stalled.Load() {
			return cmp.Or(sleep(ctx, 50*time.Millisecond), localerror.ErrNoStream)
		}
		return sleep(ctx, 20*time.Millisecond)
	}}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		sendQueries(t, client, 1)()
		stalled.Store(true)
		wait := sendQueries(t, client, 10)
		time.Sleep(200 * time.Millisecond)
		stalled.Store(false)
		wait()
		for range 60 {
			time.Sleep(time.Second)
			sendQueries(t, client, 10)()
		}
		dials := s.dials
		sendQueries(t, client, 90)()
		assert.Equal(t, dials, s.dials, "no further connection is opened")
	})
}

// A server permits two queries at a time over a connection, and accepts no further connection after the third. Queries
// wait for the open ones.
func TestProtocolQueriesWaitForOpenConnectionsOfServer(t *testing.T) {
	s := &fakeServer{
		accept: func(_ context.Context, number int) error {
			if number > 3 {
				return syscall.ECONNREFUSED
			}
			return nil
		},
		answer: func(ctx context.Context, c *fakeServerConn) error {
			select {
			case c.streams <- struct{}{}:
				defer func() { <-c.streams }()
				return sleep(ctx, time.Second)
			case <-time.After(50 * time.Millisecond):
				return localerror.ErrNoStream
			}
		},
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		start := time.Now()
		sendQueries(t, client, 20)()
		assert.LessOrEqual(t, time.Since(start), 4300*time.Millisecond, "four rounds of six queries")
		assert.Len(t, s.conns, 3)
		assert.LessOrEqual(t, s.dials, 6)
	})
}

// A connection whose exchange fails with net.ErrClosed gets no further query, even if Done is closed later.
func TestProtocolQueryLeavesClosedConnectionAtOnce(t *testing.T) {
	s := &fakeServer{answer: func(_ context.Context, c *fakeServerConn) error {
		if c.number > 1 || c.queries == 1 {
			return nil
		}
		time.AfterFunc(time.Second, func() { c.Close() })
		return fmt.Errorf("server restarts: %w", net.ErrClosed)
	}}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		sendQueries(t, client, 1)()
		start := time.Now()
		sendQueries(t, client, 1)()
		assert.Zero(t, time.Since(start))
		require.Len(t, s.conns, 2)
		assert.Equal(t, 2, s.conns[0].queries)
		time.Sleep(2 * time.Second)
	})
}

// The server closes the first connection without a response. Each of its queries is sent again over a connection of its
// own, because any of them may be the reason.
func TestProtocolRepeatsAllQueriesOfEndedConnection(t *testing.T) {
	s := &fakeServer{
		accept: func(ctx context.Context, _ int) error { return sleep(ctx, 20*time.Millisecond) },
		answer: func(ctx context.Context, c *fakeServerConn) error {
			if c.number == 1 {
				return cmp.Or(sleep(ctx, time.Millisecond), c.Close(), io.EOF)
			}
			return nil
		},
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		sendQueries(t, client, 3)()
		assert.Len(t, s.conns, 4)
	})
}

// Close closes all connections, although a concurrent caller removes those that have ended.
func TestProtocolCloseClosesAllConnections(t *testing.T) {
	s := &fakeServer{answer: func(ctx context.Context, _ *fakeServerConn) error { return sleep(ctx, time.Second) }}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		var waits []func()
		for range 3 {
			waits = append(waits, sendQueries(t, client, 100))
		}
		for _, wait := range waits {
			wait()
		}
		require.Len(t, s.conns, 3)
		for _, c := range s.conns {
			c.onClose = func() { client.Ready() }
		}
		client.Close()
		for _, c := range s.conns {
			assert.True(t, c.isClosed())
		}
	})
}

// A connection for one query alone is closed if it opens after the query has ended.
func TestProtocolClosesLateConnectionOfOneQuery(t *testing.T) {
	s := &fakeServer{accept: func(context.Context, int) error {
		time.Sleep(time.Second)
		return nil
	}}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, err := client.Exchange(ctx, wire.RootServers.WithOwnConnection(), 0, new(transport.QueryPath))
		require.Error(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, s.conns, 1)
		assert.Zero(t, s.conns[0].queries)
		assert.True(t, s.conns[0].isClosed())
	})
}
