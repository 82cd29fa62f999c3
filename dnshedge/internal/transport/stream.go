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

// A streamTransport sends queries over TCP (RFC 7766) or TLS (RFC 7858). Queries share a connection, which is opened on
// demand and closed when it is idle. Later queries of a question, such as hedges, use a different
// connection than its first query.
type streamTransport struct {
	// Some servers close the connection when they reject a question, without saying which one. In that case, each query in
	// flight is sent again over a connection of its own.

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

// recordConnEnd records that a connection has ended after the given number of responses. hadQueries must be true if the
// server has ended it while queries were in flight. If this happens repeatedly, later connections carry fewer queries
// for ten minutes (limitLifetime).
func (l *streamConnPool) recordConnEnd(answers int, hadQueries bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !hadQueries || answers == 0 {
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

// Exchange implements Transport. It returns the response to q, and the time that q waited for handshakes. n is the
// number of earlier queries with the same question to this server. path records the connection. If the connection ends
// first, q may be sent again.
func (s *streamTransport) Exchange(ctx context.Context, q *wire.Query, n int, path *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return s.exchangeExclusively(ctx, q, path)
	}
	a, setup, err := s.exchangeInPool(ctx, q, &s.pools[s.probing.poolIndex(q, n)], path)
	if broken := (*connectionError)(nil); !errors.As(err, &broken) || !broken.hadOthers || ctx.Err() != nil {
		return a, setup, err
	}
	s.Owner.RecordRetry() // each query that was in flight may be the reason for the end of the connection
	a, more, err := s.exchangeExclusively(ctx, q, path)
	return a, setup + more, err
}

// exchangeExclusively sends q over a connection that no other query uses meanwhile, and records it in path. It returns
// the response, and the time that q waited for handshakes. If maxExclusive of these queries run, it first waits until
// one of them or ctx ends.
func (s *streamTransport) exchangeExclusively(ctx context.Context, q *wire.Query, path *QueryPath) (*wire.Answer, time.Duration, error) {
	// The server may close a connection because of q, and other queries must not be lost then.
	select {
	case l := <-s.exclusivePools:
		defer func() { s.exclusivePools <- l }()
		return s.exchangeInPool(ctx, q, l, path)
	case <-ctx.Done():
		return nil, 0, contextCause(ctx)
	}
}

// exchangeInPool sends q over the connection of the pool l, and records it in path. It returns the response, and the
// time that q waited for handshakes. If the connection ends first, probably not because of q, it sends q again, up to
// maxRetries times.
func (s *streamTransport) exchangeInPool(ctx context.Context, q *wire.Query, l *streamConnPool, path *QueryPath) (*wire.Answer, time.Duration, error) {
	var setup time.Duration
	for retries := 0; ; {
		a, use, err := s.sendQuery(ctx, q, l, path)
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

// SendOnce implements sender. It sends q, which the server must not get twice, and records the connection in path.
// setup is the time that q waited for handshakes. written matters only with an error: it is true if the server may have
// received q.
func (s *streamTransport) SendOnce(ctx context.Context, q *wire.Query, path *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ {
		a, use, err := s.sendQuery(ctx, q, &s.pools[0], path)
		setup += use.setup
		var broken *connectionError
		if errors.As(err, &broken) && !broken.sent && ctx.Err() == nil && retries < maxRetries {
			continue // q was not written
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

// sendQuery writes q, at most once, to the connection of the pool l, and records that connection in path. It returns
// the response a. use describes how q got the connection, and is valid even if err is not nil.
func (s *streamTransport) sendQuery(ctx context.Context, q *wire.Query, l *streamConnPool, path *QueryPath) (a *wire.Answer, use connectionUse, err error) {
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
		path.lastAnswer.Store(&c.lastAnswer)
		b, err := c.sendAndWait(ctx, q)
		if errors.Is(err, errRetired) {
			continue // q was not written
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

// acquirePooledConn returns the connection of the pool l that accepts queries. If there is none, it opens one and waits
// until ctx ends. reused is true if the connection was open before the call. The error is ErrClosed if the transport is
// closed.
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
	attempt := l.opening
	// Open another connection also if enough queries wait for the newest attempt, or if it takes too long.
	if attempt == nil || l.open < maxOpen && (l.limit > 0 && attempt.queries >= l.limit || time.Since(attempt.began) > s.Owner.StallTimeout()) {
		attempt = &pendingConn{began: time.Now(), done: make(chan struct{})}
		l.opening = attempt
		l.open++
		s.wg.Go(func() { s.openConnection(l, attempt) })
	}
	attempt.queries++
	l.mu.Unlock()
	select {
	case <-attempt.done:
		return attempt.conn, false, attempt.err
	case <-ctx.Done():
		return nil, false, contextCause(ctx)
	}
}

// openConnection opens a connection for the pool l within five seconds (dialTimeout), including the TLS handshake. It
// passes the connection or the error to finishOpening, which stores it in attempt and wakes the waiting queries.
func (s *streamTransport) openConnection(l *streamConnPool, attempt *pendingConn) {
	var c net.Conn
	err, start := errGoexit, time.Now()
	defer func() { s.finishOpening(l, attempt, c, err, time.Since(start)) }()
	// The opening continues even if no query waits any more, because the next query needs the connection as well.
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	c, err = s.DialServer(ctx, "tcp")
	if err == nil && s.security != nil {
		t := tls.Client(c, s.security)
		c, err = t, errGoexit // the TLS configuration may end the goroutine; the connection must not be used without TLS
		if err = t.HandshakeContext(ctx); err != nil {
			s.forgetAddress()
		}
	}
}

// errGoexit is the error of a connection or query whose Dialer, TLS configuration or protocol has called
// runtime.Goexit.
var errGoexit = errors.New("dnshedge: Dialer or Protocol ended its goroutine")

// finishOpening ends the opening of a connection. It stores c or err in attempt, wakes the waiting queries, and makes c
// the connection of the pool l. took is the time for dialing and the handshake. If the transport is closed, it stores
// ErrClosed.
func (s *streamTransport) finishOpening(l *streamConnPool, attempt *pendingConn, c net.Conn, err error, took time.Duration) {
	defer close(attempt.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opening == attempt {
		l.opening = nil
	}
	if err != nil || l.closed {
		l.open--
	}
	switch {
	case err != nil:
		if c != nil {
			_ = c.Close()
		}
		attempt.err = err
		if s.ctx.Err() != nil {
			attempt.err = ErrClosed
		}
	case l.closed:
		_ = c.Close()
		attempt.err = ErrClosed
	default:
		s.Owner.RecordHandshake(took)
		attempt.conn = newConnection(s, l, c)
		l.conn = attempt.conn
		s.wg.Go(attempt.conn.readMessages)
	}
}
