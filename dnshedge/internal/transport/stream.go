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
		return newStreamTransport(c, nil)
	})
	registerScheme(Scheme{Name: "tls", RFC: 7858, Port: "853", TLS: true}, func(c Config) sender {
		return newStreamTransport(c, c.tlsConfig("dot"))
	})
}

const (
	defaultIdleTimeout = 10 * time.Second // idle timeout of a connection if the server names none
	maxIdleTimeout     = 2 * time.Minute  // longest idle timeout; routers forget connections that are idle for longer
	dialTimeout        = 5 * time.Second  // timeout for dialing and the handshake together

	maxRetries    = 8                // number of times that a query is sent again because its connections have ended
	maxOpen       = 16               // number of open connections in a pool at which a learned query limit is ignored
	limitLifetime = 10 * time.Minute // time after which a learned query limit expires

	sharedPools  = probePool + 1 // number of shared pools, by poolIndex: for first queries, for later ones, and for probes
	maxExclusive = 8             // number of pools for queries that need a connection of their own
)

// A streamTransport sends queries over TCP (RFC 7766) or TLS (RFC 7858). The queries of a pool share one connection,
// which is opened on demand and closed when it is idle. The server may respond in any order.
//
// There are pools for the first query of each question, for later queries of the question (hedges and retransmissions),
// and for probes while these must not share a connection with other queries (see probePolicy).
//
// Some servers close the connection when they reject a question, without saying which one. In that case, each query
// that was in flight is sent again on a connection of its own.
type streamTransport struct {
	Config
	security       *tls.Config                                // TLS configuration; nil: plain TCP
	pools          [sharedPools + maxExclusive]streamConnPool // shared pools first, then pools for one query at a time
	exclusivePools chan *streamConnPool                       // unused pools of the second kind
	probing        probePolicy                                // decides whether probes may use the connections of other queries

	ctx    context.Context    // ends when Close is called
	cancel context.CancelFunc // ends ctx
	wg     sync.WaitGroup     // goroutines that open or read connections, or wait for abandoned queries
}

var _ sender = (*streamTransport)(nil)

// A streamConnPool is a connection pool of a streamTransport. At most one of its connections accepts queries. It is
// safe for concurrent use.
type streamConnPool struct {
	mu      sync.Mutex   // guards the fields below
	conn    *connection  // the connection that accepts queries; nil: none
	opening *pendingConn // the connection that is being opened for waiting queries; nil: none
	open    int          // number of open connections, plus the connections that are being opened
	closed  bool         // the transport is closed

	// Many servers close a connection after a fixed number of queries, even with queries in flight. After two connections
	// in a row that ended with queries in flight, the limit is the number of responses of the better one. A single end
	// may be a restart of the server.
	//
	// answersBeforeCut is the number of responses of the last connection if it ended with queries in flight, or else 0.
	answersBeforeCut int
	limit            int       // maximum number of queries of a connection; 0: unknown
	limitEnd         time.Time // time at which limit expires
}

// hasReachedQueryLimit reports whether a connection that has carried the given number of queries must carry no more,
// because the server closes connections after that number of queries.
func (l *streamConnPool) hasReachedQueryLimit(queries int) bool {
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

// recordConnEnd records that a connection has ended after the given number of responses. cut must be true if the server
// has ended the connection while queries were in flight.
//
// If cut is true for two connections in a row, and both had responses, the server probably limits the queries per
// connection. For the next ten minutes (limitLifetime), a connection then carries at most as many queries as the better
// of the two had responses.
func (l *streamConnPool) recordConnEnd(answers int, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !cut || answers == 0 {
		l.answersBeforeCut = 0
		return
	}
	if l.answersBeforeCut > 0 {
		l.limit, l.limitEnd = max(l.answersBeforeCut, answers), time.Now().Add(limitLifetime)
	}
	l.answersBeforeCut = answers
}

// A pendingConn is a connection that is being opened, and the queries that wait for it.
type pendingConn struct {
	began   time.Time     // time at which the opening began
	queries int           // number of queries that have begun to wait; guarded by streamConnPool.mu
	done    chan struct{} // closed when conn or err is set
	conn    *connection   // the opened connection; nil: err is set
	err     error         // why the connection could not be opened
}

// newStreamTransport returns a transport to the server that c describes. It sends queries over TLS with the
// configuration security, or over TCP if security is nil. It opens no connection.
func newStreamTransport(c Config, security *tls.Config) *streamTransport {
	s := &streamTransport{Config: c, security: security}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.exclusivePools = make(chan *streamConnPool, maxExclusive)
	for i := range maxExclusive {
		s.exclusivePools <- &s.pools[sharedPools+i]
	}
	return s
}

// Ready implements Transport. It reports whether the pool for the first query of each question has an open connection,
// so that this query needs no handshake. Later queries of a question, such as hedges and retransmissions to the same
// server, use another pool.
func (s *streamTransport) Ready() bool {
	l := &s.pools[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

// Close implements Transport. It ends all queries with ErrClosed, and waits until all goroutines of the transport have
// ended.
func (s *streamTransport) Close() {
	s.cancel()
	for i := range s.pools {
		l := &s.pools[i]
		l.mu.Lock()
		l.closed = true
		c := l.conn
		l.mu.Unlock()
		if c != nil {
			c.closeWithError(ErrClosed)
		}
	}
	s.wg.Wait()
}

// spawnGoroutine calls f in a new goroutine, for which Close waits, and returns true. It returns false, and does not
// call f, if the transport is closed.
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

// Exchange implements Transport. n is the number of earlier queries with the same question to this server, and w
// records the connection of q. It returns the response, and the time that q waited for handshakes.
//
// If the connection ends while other queries are in flight, each of the queries may be the reason. So Exchange sends q
// again on a connection of its own, unless exchangeInPool sends q again over the same pool.
func (s *streamTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return s.exchangeExclusively(ctx, q, w)
	}
	a, setup, err := s.exchangeInPool(ctx, q, &s.pools[s.probing.poolIndex(q, n)], w)
	if broken := (*connectionError)(nil); !errors.As(err, &broken) || !broken.hadOthers || ctx.Err() != nil {
		return a, setup, err
	}
	s.Owner.RecordRetry()
	a, more, err := s.exchangeExclusively(ctx, q, w)
	return a, setup + more, err
}

// exchangeExclusively sends q over a connection that no other query uses at the time, and records it in w. It returns
// the response, and the time that q waited for handshakes.
//
// The server may close a connection because of q, and other queries must not be lost then. At most maxExclusive of
// these queries run at the same time. A further query waits until one of them ends, and fails with the cause of ctx if
// ctx ends first.
func (s *streamTransport) exchangeExclusively(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case l := <-s.exclusivePools:
		defer func() { s.exclusivePools <- l }()
		return s.exchangeInPool(ctx, q, l, w)
	case <-ctx.Done():
		return nil, 0, contextCause(ctx)
	}
}

// exchangeInPool sends q over the connection of the pool l, and records the connection in w. It returns the response,
// and the time that q waited for handshakes.
//
// If the connection ends before the response, and q was probably not the reason, exchangeInPool sends q again, up to
// eight times (maxRetries). q was probably not the reason in these cases:
//
//   - The connection had carried responses.
//   - A probe was in flight, and q asks another question.
//   - The connection was open before q came. This case only counts for the first connection.
func (s *streamTransport) exchangeInPool(ctx context.Context, q *wire.Query, l *streamConnPool, w *QueryPath) (*wire.Answer, time.Duration, error) {
	var setup time.Duration
	for retries := 0; ; {
		a, use, err := s.sendQuery(ctx, q, l, w)
		setup += use.setup
		// A server may close an idle connection at any time (RFC 7766 §6.2.3). It may also close a
		// connection after some number of responses. If a probe was in flight, the probe may be the
		// reason, and not the query.
		var broken *connectionError
		if errors.As(err, &broken) && ctx.Err() == nil &&
			(use.reused && retries == 0 || (broken.answers > 0 || broken.endedByProbe && !isProbeQuestion(q)) && retries < maxRetries) {
			s.Owner.RecordRetry()
			retries++
			continue
		}
		return a, setup, err
	}
}

// SendOnce implements sender. It sends q, a message that the server must not get twice, over the connection of the pool
// for first queries, and records the connection in w. If the connection has ended before q was written, it uses another
// one. It returns the response a, and in setup the time that q waited for handshakes.
//
// written matters only if err is not nil. It is true if the server may have received q.
func (s *streamTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ {
		a, use, err := s.sendQuery(ctx, q, &s.pools[0], w)
		setup += use.setup
		var broken *connectionError
		if errors.As(err, &broken) && !broken.sent && ctx.Err() == nil && retries < maxRetries {
			continue
		}
		return a, setup, use.connected && (broken == nil || broken.sent), err
	}
}

// A connectionUse describes whether and how a query got a connection of a pool.
type connectionUse struct {
	setup     time.Duration // time to open the connections that the query waited for; 0: none
	connected bool          // the query got a connection
	reused    bool          // the connection was open before the query came
}

// sendQuery writes q, at most once, to the connection of the pool l, and records the connection in w. It returns the
// response a. use describes how q got the connection, and is valid even if err is not nil. If the connection accepts no
// further queries before q is written, q gets another one.
func (s *streamTransport) sendQuery(ctx context.Context, q *wire.Query, l *streamConnPool, w *QueryPath) (a *wire.Answer, use connectionUse, err error) {
	for {
		start := time.Now()
		c, reused, err := s.acquirePooledConn(ctx, l)
		use.connected, use.reused = err == nil, reused
		if err != nil {
			return nil, use, err
		}
		if !reused {
			use.setup += time.Since(start)
		}
		w.lastAnswer.Store(&c.lastAnswer)
		b, err := c.sendAndWait(ctx, q)
		if errors.Is(err, errRetired) {
			continue
		}
		if err != nil {
			return nil, use, err
		}
		a, err := wire.ParseAnswer(b, q)
		if err != nil {
			s.Owner.RecordIgnored(err)
			return nil, use, err
		}
		if a.HasKeepalive {
			c.applyKeepalive(a.Keepalive)
		}
		return a, use, nil
	}
}

// acquirePooledConn returns the connection of the pool l that accepts queries. If there is none, it waits until ctx
// ends for a connection that is being opened. reused is true if the connection was open before the call. The error is
// the cause of ctx, ErrClosed, or the reason why the connection could not be opened.
//
// If no connection accepts queries or is being opened, it starts to open one. While fewer than 16 connections (maxOpen)
// are open or being opened, it opens a further one if the newest attempt has taken longer than Owner.StallTimeout. It
// also does so if as many queries wait for the newest attempt as a connection may carry (see
// streamConnPool.hasReachedQueryLimit).
func (s *streamTransport) acquirePooledConn(ctx context.Context, l *streamConnPool) (c *connection, reused bool, err error) {
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
		o = &pendingConn{began: time.Now(), done: make(chan struct{})}
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
		return nil, false, contextCause(ctx)
	}
}

// openConnection opens a connection for the pool l within five seconds (dialTimeout), including the TLS handshake. It
// passes the connection or the error to finishOpening, which stores it in o and wakes the waiting queries. It continues
// even if no query waits any more, because the next query needs the connection as well.
func (s *streamTransport) openConnection(l *streamConnPool, o *pendingConn) {
	var c net.Conn
	err, start := errGoexit, time.Now()
	defer func() { s.finishOpening(l, o, c, err, time.Since(start)) }()
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	c, err = s.DialServer(ctx, "tcp")
	if err == nil && s.security != nil {
		t := tls.Client(c, s.security)
		if err = t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			s.forgetAddress()
		}
		c = t
	}
}

// errGoexit is the error of a connection whose Dialer or protocol has called runtime.Goexit.
var errGoexit = errors.New("dnshedge: Dialer or Protocol ended its goroutine")

// finishOpening ends the opening of a connection. It stores either err or the opened connection c in o, and wakes the
// queries that wait for o. Queries of the pool l then use c. If the transport was closed meanwhile, finishOpening
// closes c and stores ErrClosed. took is the time for dialing and the handshake.
func (s *streamTransport) finishOpening(l *streamConnPool, o *pendingConn, c net.Conn, err error, took time.Duration) {
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
