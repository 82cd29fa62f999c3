package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	registerScheme(Scheme{Name: "tcp", RFC: 7766, Port: "53"}, func(c Config) sender {
		return newStream(c, nil)
	})
	registerScheme(Scheme{Name: "tls", RFC: 7858, Port: "853", TLS: true}, func(c Config) sender {
		return newStream(c, c.tlsConfig("dot"))
	})
}

const (
	defaultIdleTimeout = 10 * time.Second // default idle timeout of a connection
	maxIdleTimeout     = 2 * time.Minute  // maximum idle timeout, because routers forget idle connections
	dialTimeout        = 5 * time.Second  // timeout of a dial and its handshake

	maxRetries    = 8                // maximum number of repetitions of a query because its connections have ended
	maxOpen       = 16               // connections of a pool from which on a learned query limit is ignored
	limitLifetime = 10 * time.Minute // how long a learned query limit holds

	sharedPools  = probePool + 1 // pools for first queries, for repetitions, and for probes
	maxExclusive = 8             // pools for queries that share no connection
)

// A streamTransport sends queries over TCP (RFC 7766) or TLS (RFC 7858). The queries of a pool share one connection and
// are answered in any order. The connection is opened on demand and closed when it is idle. There are pools for first
// queries, for repetitions, and for probes that need a connection of their own (see probePolicy).
//
// Some servers close the connection when they reject a question. The rejected question is unknown, so all queries in
// flight are repeated one at a time, each on a connection of its own.
type streamTransport struct {
	Config
	security       *tls.Config // nil: no TLS
	pools          [sharedPools + maxExclusive]streamConnPool
	exclusivePools chan *streamConnPool // pools for one query at a time that are free
	probing        probePolicy

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // goroutines that open or read connections, or await abandoned answers
}

var _ sender = (*streamTransport)(nil)

// A streamConnPool is a connection pool of a streamTransport. It has at most one connection that accepts queries.
type streamConnPool struct {
	mu      sync.Mutex   // guards the fields below
	conn    *connection  // accepts queries; nil: none
	opening *openingConn // the last connection that is being opened; nil: none
	open    int          // number of connections, with those that are retired or being opened
	closed  bool

	// Many servers close a connection after a fixed number of queries, even with queries in flight. After two such
	// connections in a row, the next ones get only as many queries as the better of these had answers. One alone may be a
	// restart.
	//
	// cut is the number of answers of the last connection if it ended with queries in flight, else 0.
	cut      int
	limit    int       // maximum number of queries of a connection; 0: not known
	limitEnd time.Time // end of the limit's lifetime
}

// isFull reports whether a connection has reached the learned limit after the given number of queries.
func (l *streamConnPool) isFull(queries int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == 0 || queries < l.limit || l.open > maxOpen {
		return false
	}
	if time.Now().After(l.limitEnd) {
		l.limit = 0
	}
	return l.limit > 0
}

// recordEnd records the end of a connection after the given number of answers. cut reports whether the server has ended
// it with queries in flight.
func (l *streamConnPool) recordEnd(answers int, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !cut || answers == 0 {
		l.cut = 0
		return
	}
	if l.cut > 0 {
		l.limit, l.limitEnd = max(l.cut, answers), time.Now().Add(limitLifetime)
	}
	l.cut = answers
}

// An openingConn is a connection that is being opened, for all queries that wait for it.
type openingConn struct {
	began   time.Time
	queries int // number of queries that wait; guarded by the pool's lock
	done    chan struct{}
	conn    *connection
	err     error
}

// newStream returns a transport over TLS, or over TCP if security is nil.
func newStream(c Config, security *tls.Config) *streamTransport {
	s := &streamTransport{Config: c, security: security}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.exclusivePools = make(chan *streamConnPool, maxExclusive)
	for i := range maxExclusive {
		s.exclusivePools <- &s.pools[sharedPools+i]
	}
	return s
}

// Ready implements Transport.
func (s *streamTransport) Ready() bool {
	l := &s.pools[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

// Close implements Transport.
func (s *streamTransport) Close() {
	s.cancel()
	for i := range s.pools {
		l := &s.pools[i]
		l.mu.Lock()
		l.closed = true
		c := l.conn
		l.mu.Unlock()
		if c != nil {
			c.failQueries(ErrClosed)
		}
	}
	s.wg.Wait()
}

// spawnGoroutine calls f in a goroutine that Close waits for. It reports false, without a call, if the transport is
// closed.
func (s *streamTransport) spawnGoroutine(f func()) bool {
	l := &s.pools[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

// Exchange implements Transport. If the server ends the connection with other queries in flight, it repeats q on a
// connection of its own.
func (s *streamTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return s.exchangeExclusively(ctx, q, w)
	}
	a, setup, err := s.exchangeInPool(ctx, q, &s.pools[s.probing.poolIndex(q, n)], w)
	if broken := (*connectionError)(nil); !errors.As(err, &broken) || !broken.hadOthers || ctx.Err() != nil {
		return a, setup, err
	}
	s.Owner.RecordRetry()
	return s.exchangeExclusively(ctx, q, w)
}

// exchangeExclusively is Exchange over a connection that no other query uses.
func (s *streamTransport) exchangeExclusively(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case l := <-s.exclusivePools:
		defer func() { s.exclusivePools <- l }()
		return s.exchangeInPool(ctx, q, l, w)
	case <-ctx.Done():
		return nil, 0, causeOf(ctx)
	}
}

// exchangeInPool is Exchange over the connection of a given pool.
func (s *streamTransport) exchangeInPool(ctx context.Context, q *wire.Query, l *streamConnPool, w *QueryPath) (*wire.Answer, time.Duration, error) {
	var setup time.Duration
	for retries := 0; ; {
		a, over, err := s.sendQuery(ctx, q, l, w)
		setup += over.setup
		// A server may close an idle connection at any time (RFC 7766 §6.2.3), and also
		// one that it has answered as many queries over as it wants to. If a probe was under way, that may be
		// what has ended it, and not the query.
		var broken *connectionError
		if errors.As(err, &broken) && ctx.Err() == nil &&
			(over.reused && retries == 0 || (broken.answers > 0 || broken.endedByProbe && !isProbe(q)) && retries < maxRetries) {
			s.Owner.RecordRetry()
			retries++
			continue
		}
		return a, setup, err
	}
}

// SendOnce implements sender over the pool of first queries. It retries on another connection while the message was not
// written.
func (s *streamTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ {
		a, over, err := s.sendQuery(ctx, q, &s.pools[0], w)
		setup += over.setup
		var broken *connectionError
		if errors.As(err, &broken) && !broken.sent && ctx.Err() == nil && retries < maxRetries {
			continue
		}
		return a, setup, over.connected && (broken == nil || broken.sent), err
	}
}

// A sendState describes how a query was sent over a stream.
type sendState struct {
	setup     time.Duration // time to open the connections that the query waited for
	connected bool          // the query had a connection
	reused    bool          // the connection was open before
}

// sendQuery writes q at most once, to the connection of a pool, and returns its answer.
func (s *streamTransport) sendQuery(ctx context.Context, q *wire.Query, l *streamConnPool, w *QueryPath) (a *wire.Answer, over sendState, err error) {
	for {
		start := time.Now()
		c, reused, err := s.poolConnection(ctx, l)
		over.connected, over.reused = err == nil, reused
		if err != nil {
			return nil, over, err
		}
		if !reused {
			over.setup += time.Since(start)
		}
		w.lastAnswer.Store(&c.lastAnswer)
		b, err := c.sendAndWait(ctx, q)
		if errors.Is(err, errRetired) {
			continue
		}
		if err != nil {
			return nil, over, err
		}
		a, err := wire.ParseAnswer(b, q)
		if err != nil {
			s.Owner.RecordIgnored(err)
			return nil, over, err
		}
		if a.HasKeepalive {
			c.applyKeepalive(a.Keepalive)
		}
		return a, over, nil
	}
}

// poolConnection returns the connection of a pool that accepts queries, and whether it was open before. It dials if
// there is none. It dials again if an earlier dial takes longer than the stall timeout, or if as many queries wait for
// it as the learned limit allows.
func (s *streamTransport) poolConnection(ctx context.Context, l *streamConnPool) (c *connection, reused bool, err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, false, ErrClosed
	}
	if c := l.conn; c != nil {
		l.mu.Unlock()
		return c, true, nil
	}
	o := l.opening
	if o == nil || l.open < maxOpen && (l.limit > 0 && o.queries >= l.limit || time.Since(o.began) > s.Owner.StallTimeout()) {
		o = &openingConn{began: time.Now(), done: make(chan struct{})}
		l.opening = o
		l.open++
		s.wg.Go(func() { s.openConnection(l, o) })
	}
	o.queries++
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.conn, false, o.err
	case <-ctx.Done():
		return nil, false, causeOf(ctx)
	}
}

// openConnection opens a connection of a pool. It continues when all waiting callers have left, because the next query
// needs the connection as well.
func (s *streamTransport) openConnection(l *streamConnPool, o *openingConn) {
	var c net.Conn
	err, start := errGoexit, time.Now()
	defer func() { s.finishOpening(l, o, c, err, time.Since(start)) }()
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	c, err = s.dialServer(ctx, "tcp")
	if err == nil && s.security != nil {
		t := tls.Client(c, s.security)
		if err = t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			s.forgetAddress()
		}
		c = t
	}
}

// errGoexit is the error of a connection whose Dialer has called runtime.Goexit.
var errGoexit = errors.New("dnshedge: Dialer ended its goroutine")

// finishOpening stores the opened connection c, or err, and wakes the queries that wait for it. took is the duration of
// the dial and its handshake.
func (s *streamTransport) finishOpening(l *streamConnPool, o *openingConn, c net.Conn, err error, took time.Duration) {
	defer close(o.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opening == o {
		l.opening = nil
	}
	if err != nil || l.closed {
		l.open--
	}
	switch {
	case err != nil:
		o.err = err
		if s.ctx.Err() != nil {
			o.err = ErrClosed
		}
	case l.closed:
		_ = c.Close()
		o.err = ErrClosed
	default:
		s.Owner.RecordHandshake(took)
		o.conn = newConnection(s, l, c)
		l.conn = o.conn
		s.wg.Go(o.conn.readMessages)
	}
}
