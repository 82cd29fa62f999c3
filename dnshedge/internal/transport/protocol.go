package transport

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	queriesPerConn  = 100                // queries in flight on a connection at which a pool opens another one
	maxProtocolLoad = 8 * queriesPerConn // queries in flight for which a pool may open connections; see isFull

	// limitTolerance is used after the server has not permitted a query. Queries that began later than that query by more
	// than this time are assumed to wait for the server's permission as well.
	limitTolerance = 5 * time.Millisecond
)

// A MessageConn is a connection to a server over a protocol that another module provides, for example DNS over QUIC.
// The protocol itself assigns each response to its query, so all messages have the ID 0. It is safe for concurrent use.
type MessageConn interface {
	// Exchange sends the DNS message query, whose ID is 0, and returns the response. When ctx ends, it returns soon. If it
	// fails because the connection has ended, Done is closed before, or the error is net.ErrClosed (errors.Is). If it has
	// not sent the query, because the server permits no more queries at a time, the error is localerror.ErrNoStream.
	Exchange(ctx context.Context, query []byte) (response []byte, err error)
	// Done returns a channel that is closed when the connection has ended, or accepts no further queries. The next query then
	// needs another connection.
	Done() <-chan struct{}
	// Close closes the connection. Exchanges in flight end with an error.
	Close() error
}

// RegisterProtocol makes the scheme s available to FindScheme and Schemes. Only init functions may call it. It panics
// if the name is already registered. dial opens a connection to the server; its context ends after five seconds. The
// protocol must retransmit lost packets itself.
func RegisterProtocol(s Scheme, dial func(context.Context, *Config) (MessageConn, error)) {
	if _, ok := schemes[s.Name]; ok {
		panic("dnshedge: scheme " + s.Name + " is registered twice")
	}
	s.RecoversLoss = true // a late query is not sent to the same address again, except as a hedge
	registerScheme(s, func(c Config) sender { return newProtocolTransport(c, dial) })
}

// A protocolTransport sends queries over a protocol of another module, such as DNS over QUIC. A connection carries
// several queries at the same time. The first query of each question and later queries of the question, such as hedges,
// use different connections.
type protocolTransport struct {
	Config
	// dial opens a connection; see RegisterProtocol.
	dial           func(context.Context, *Config) (MessageConn, error)
	pools          [2]messageConnPool // for first queries and for hedges, which must not wait for a stalled connection
	exclusiveSlots chan struct{}      // semaphore that limits queries with a connection of their own

	ctx    context.Context    // ends when Close is called
	cancel context.CancelFunc // ends ctx
	mu     sync.Mutex         // guards closed; held from the check of closed until wg.Add
	closed bool               // Close was called
	wg     sync.WaitGroup     // counts goroutines that open connections or wait for responses
}

var _ sender = (*protocolTransport)(nil)

// A messageConnPool holds the open connections of a protocolTransport for one kind of queries: the first query of each
// question, later queries of a question, or a single query with a connection of its own. It is safe for concurrent use.
type messageConnPool struct {
	mu         sync.Mutex            // guards the fields below, and the counters of the connections
	conns      []*pooledMessageConn  // open connections
	openings   []*pendingMessageConn // connections that are being opened, oldest first
	waiting    int                   // number of queries that wait for a connection
	nextGrowth time.Time             // no additional connection is opened before this time
	closed     bool                  // the pool must get no further connection; only used for the pool of a single query
	room       chan struct{}         // capacity 1; full if a connection may have become free for a waiting query; nil: none has waited
}

// A pooledMessageConn is an open connection of a messageConnPool. It counts its responses and its queries in flight. A
// new query uses the connection that has room for the most further queries.
type pooledMessageConn struct {
	MessageConn
	pool       *messageConnPool
	inFlight   []*queryInFlight // queries that wait for a response, oldest first
	limit      int              // number of queries in flight at which a query needs another connection
	limitSince time.Time        // time at which limit last changed
	answers    int              // responses so far
	hadOthers  bool             // more than one query was in flight when the connection ended
	lastAnswer atomic.Int64     // time of the last response, in Unix nanoseconds; 0: none
	broken     atomic.Bool      // an exchange has failed because the connection has ended
}

// A queryInFlight is a query that was assigned to a connection and has not ended.
type queryInFlight struct {
	*pooledMessageConn
	began time.Time // time at which the query was assigned
}

// A pendingMessageConn is an attempt to open a connection. Several queries can wait for its result: the connection or
// an error.
type pendingMessageConn struct {
	done chan struct{}      // closed when conn or err is set
	conn *pooledMessageConn // the opened connection; nil: err is set, or the opening has not ended
	err  error              // why the connection could not be opened
}

// newProtocolTransport returns a transport to the server that c describes. It opens no connection. The transport opens
// its connections by dial, which is described at RegisterProtocol.
func newProtocolTransport(c Config, dial func(context.Context, *Config) (MessageConn, error)) *protocolTransport {
	p := &protocolTransport{Config: c, dial: dial, exclusiveSlots: make(chan struct{}, maxExclusive)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Ready implements Transport. It reports whether the pool for the first query of each question has an open connection,
// so that this query needs no handshake. Later queries of a question, such as hedges to the same server, use another
// pool.
func (p *protocolTransport) Ready() bool {
	l := &p.pools[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeEnded()
	return len(l.conns) > 0
}

// Close implements Transport. It ends all queries with ErrClosed, and returns when all goroutines of the transport have
// ended.
func (p *protocolTransport) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	for i := range p.pools {
		for _, c := range p.pools[i].copyConns() {
			_ = c.Close()
		}
	}
}

// spawnGoroutine calls f in a new goroutine, for which Close waits. It returns false, and does not call f, if the
// transport is closed.
func (p *protocolTransport) spawnGoroutine(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(f)
	return true
}

// Exchange implements Transport. It returns the response to q, and the time that q waited for handshakes. n is the
// number of earlier queries with the same question to this server. If the connection ends first, q may be sent again,
// up to maxRetries times.
func (p *protocolTransport) Exchange(ctx context.Context, q *wire.Query, n int, path *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return p.exchangeExclusively(ctx, q, path)
	}
	var setup time.Duration
	for retries := 0; ; retries++ {
		a, use, err := p.sendQuery(ctx, q, &p.pools[min(n, 1)], path)
		setup += use.setup
		var broken *connectionError
		if !errors.As(err, &broken) || ctx.Err() != nil || retries == maxRetries {
			return a, setup, err
		}
		switch {
		case broken.answers > 0 || use.reused && retries == 0: // q is probably not the reason: use the same pool
		case broken.hadOthers: // each of the queries may be the reason
			p.Owner.RecordRetry()
			a, more, err := p.exchangeExclusively(ctx, q, path)
			return a, setup + more, err
		default:
			return a, setup, err
		}
		p.Owner.RecordRetry()
	}
}

// exchangeExclusively sends q over a new connection that no other query uses, and records it in path. It returns the
// response, and the time that q waited for handshakes. If maxExclusive of these queries run, it first waits until one
// of them or ctx ends.
func (p *protocolTransport) exchangeExclusively(ctx context.Context, q *wire.Query, path *QueryPath) (*wire.Answer, time.Duration, error) {
	// The server may close a connection because of q, and other queries must not be lost then.
	select {
	case p.exclusiveSlots <- struct{}{}:
		defer func() { <-p.exclusiveSlots }()
	case <-ctx.Done():
		return nil, 0, contextCause(ctx)
	}
	l := new(messageConnPool)
	a, use, err := p.sendQuery(ctx, q, l, path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	return a, use.setup, err
}

// SendOnce implements sender. It sends q, which the server must not get twice, and records the connection in path.
// setup is the time that q waited for handshakes. written matters only with an error: it is true if q may have been
// written.
func (p *protocolTransport) SendOnce(ctx context.Context, q *wire.Query, path *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	a, use, err := p.sendQuery(ctx, q, &p.pools[0], path)
	return a, use.setup, use.connected, err
}

// sendQuery sends q, at most once, over a connection of the pool l, and records that connection in path. It returns the
// response a. use describes how q got the connection, and is valid even if err is not nil.
func (p *protocolTransport) sendQuery(ctx context.Context, q *wire.Query, l *messageConnPool, path *QueryPath) (a *wire.Answer, use connectionUse, err error) {
	for tries := 0; ; tries++ {
		earlier := use.setup
		var c *queryInFlight
		c, use, err = p.acquireConn(ctx, l)
		use.setup += earlier
		if err != nil {
			return nil, use, err
		}
		if tries == 0 {
			p.Owner.RecordQuery()
		}
		path.lastAnswer.Store(&c.lastAnswer)
		a, err = p.waitForAnswer(ctx, c, q)
		if !errors.Is(err, localerror.ErrNoStream) || ctx.Err() != nil {
			return a, use, err
		} // q was not sent, because the server permits no more queries at a time
	}
}

// acquireConn assigns a query to a connection of the pool l, which it opens if necessary. The caller must pass c to
// fetchAnswer or call c.releaseQuery. use describes how the query got the connection. If ctx ends first, the error is
// the cause of ctx.
func (p *protocolTransport) acquireConn(ctx context.Context, l *messageConnPool) (c *queryInFlight, use connectionUse, err error) {
	start := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var attempt *pendingMessageConn // the opening that the query waits for; nil: none
	for {
		if conn := l.selectConn(attempt); conn != nil {
			c = conn.addQuery()
			l.wakeWaitingQuery()
			use = connectionUse{connected: true, reused: attempt == nil || conn != attempt.conn}
			if attempt != nil {
				use.setup = time.Since(start)
			}
			return c, use, nil
		}
		if attempt != nil && attempt.err != nil && len(l.conns) == 0 {
			return nil, use, attempt.err
		}
		if attempt, err = p.joinOpening(l); err != nil {
			return nil, use, err
		}
		if !l.waitForConn(ctx, attempt) { // also ends when another connection gets room
			return nil, use, contextCause(ctx)
		}
	}
}

// waitForConn waits until attempt has ended, or until an open connection may have room for another query. attempt opens
// a connection; nil means that none is being opened. It returns false if ctx ends first. The caller must hold l.mu,
// which is unlocked meanwhile.
func (l *messageConnPool) waitForConn(ctx context.Context, attempt *pendingMessageConn) bool {
	var opened chan struct{}
	if attempt != nil {
		opened = attempt.done
	}
	if l.room == nil {
		l.room = make(chan struct{}, 1)
	}
	l.waiting++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.waiting--
	}()
	select {
	case <-opened:
	case <-l.room:
	case <-ctx.Done():
		return false
	}
	return true
}

// selectConn returns the least loaded connection, or nil if the query must wait for another one. attempt is the opening
// for which the query has waited, or nil. Its connection may be returned although it has ended. The caller must hold
// l.mu.
func (l *messageConnPool) selectConn(attempt *pendingMessageConn) *pooledMessageConn {
	l.removeEnded()
	if len(l.conns) > 0 {
		c := slices.MinFunc(l.conns, func(a, b *pooledMessageConn) int {
			return cmp.Compare(len(a.inFlight)-a.limit, len(b.inFlight)-b.limit)
		})
		// If the pool cannot grow, the queries may exceed queriesPerConn, which the server has not set.
		if len(c.inFlight) < c.limit || c.limit == queriesPerConn && len(l.openings) == 0 && l.isFull() {
			return c
		}
	}
	if attempt != nil && attempt.conn != nil && attempt.conn.hasEnded() {
		return attempt.conn // the query fails, instead of waiting again
	}
	return nil
}

// connLimit returns the assumed number of queries that the server permits at a time over a new connection. It is the
// lowest limit of the open connections, or queriesPerConn if none is open. The caller must hold l.mu.
func (l *messageConnPool) connLimit() int {
	limit := queriesPerConn
	for _, c := range l.conns {
		limit = min(limit, c.limit)
	}
	return limit
}

// isFull reports whether the pool must not open another connection now. The reason is that it has enough connections,
// including those being opened, or that it recently failed to open one. A pool without connections is never full. The
// caller must hold l.mu.
func (l *messageConnPool) isFull() bool {
	n := len(l.conns) + len(l.openings)
	return n > 0 && (n >= maxSockets || n*l.connLimit() >= maxProtocolLoad || time.Now().Before(l.nextGrowth))
}

// joinOpening returns the newest attempt to open a connection of the pool l, and starts an attempt if the pool needs
// one. It returns nil if none is running and none may start, and ErrClosed if the transport is closed. The caller must
// hold l.mu.
func (p *protocolTransport) joinOpening(l *messageConnPool) (*pendingMessageConn, error) {
	n := len(l.openings)
	// Several attempts run at the same time only if they are fewer than the open connections, and too few for the
	// waiting queries.
	if isShort := n == 0 || n < len(l.conns) && l.waiting >= n*l.connLimit(); isShort && !l.isFull() {
		attempt := &pendingMessageConn{done: make(chan struct{})}
		if !p.spawnGoroutine(func() { p.openConn(l, attempt) }) {
			return nil, ErrClosed
		}
		l.openings = append(l.openings, attempt)
	}
	if n = len(l.openings); n == 0 {
		return nil, nil
	}
	return l.openings[n-1], nil
}

// wakeWaitingQuery wakes one query that waits for a connection, if an open connection has room for it. The caller must
// hold l.mu.
func (l *messageConnPool) wakeWaitingQuery() {
	if l.waiting == 0 || !slices.ContainsFunc(l.conns, func(c *pooledMessageConn) bool { return len(c.inFlight) < c.limit }) {
		return
	}
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// openConn opens a connection of the pool l. It passes the connection or the error to finishOpening, which stores it in
// attempt. It continues even if no query waits any more, because the next query needs the connection as well.
func (p *protocolTransport) openConn(l *messageConnPool, attempt *pendingMessageConn) {
	var conn MessageConn
	err, start := errGoexit, time.Now()
	defer func() { p.finishOpening(l, attempt, conn, err, time.Since(start)) }()
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	conn, err = p.dial(ctx, &p.Config)
}

// finishOpening ends the opening of a connection. It stores conn or err in attempt, and adds conn to the pool l. took
// is the time for dialing and the handshake. If the transport or the pool is closed, it closes conn and stores
// ErrClosed.
func (p *protocolTransport) finishOpening(l *messageConnPool, attempt *pendingMessageConn, conn MessageConn, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(attempt.done)
	l.openings = slices.DeleteFunc(l.openings, func(other *pendingMessageConn) bool { return other == attempt })
	switch {
	case p.ctx.Err() != nil || l.closed:
		attempt.err = ErrClosed
		if err == nil {
			_ = conn.Close()
		}
	case err != nil:
		p.forgetAddress()
		attempt.err = err
		if l.removeEnded(); len(l.conns) > 0 {
			l.nextGrowth = time.Now().Add(growPause) // open no additional connection meanwhile
		}
	default:
		p.Owner.RecordHandshake(took)
		attempt.conn = &pooledMessageConn{MessageConn: conn, pool: l, limit: l.connLimit(), limitSince: time.Now()}
		l.conns = append(l.conns, attempt.conn)
		l.wakeWaitingQuery()
	}
}

// copyConns returns the open connections in a new slice. It locks l.mu itself; the caller can use the slice without the
// lock.
func (l *messageConnPool) copyConns() []*pooledMessageConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.conns)
}

// removeEnded removes the connections that have ended, or accept no further queries, from the pool. The caller must
// hold l.mu.
func (l *messageConnPool) removeEnded() {
	l.conns = slices.DeleteFunc(l.conns, func(c *pooledMessageConn) bool { return c.hasEnded() })
}

// hasEnded reports whether the connection has ended, or accepts no further queries.
func (c *pooledMessageConn) hasEnded() bool {
	select {
	case <-c.Done():
		return true
	default:
		return c.broken.Load()
	}
}

// waitForAnswer sends q over c and returns the response. If ctx ends first, it returns the cause of ctx at once. If the
// Owner then permits an abandoned query (TryBeginAbandonedQuery), the exchange continues in the background, to measure
// its latency. Otherwise the exchange is cancelled.
func (p *protocolTransport) waitForAnswer(ctx context.Context, c *queryInFlight, q *wire.Query) (*wire.Answer, error) {
	own, cancel := context.WithCancel(p.ctx) // ctx does not end the exchange at once
	type result struct {
		a   *wire.Answer
		err error
	}
	done := make(chan result, 1)
	if !p.spawnGoroutine(func() {
		r := result{err: errGoexit}
		defer func() {
			cancel()
			if r.err == errGoexit { // c.Exchange has ended the goroutine
				c.releaseQuery(false)
			}
			done <- r
		}()
		r.a, r.err = p.fetchAnswer(own, c, q)
	}) {
		cancel()
		c.releaseQuery(false)
		return nil, ErrClosed
	}
	select {
	case r := <-done:
		return r.a, r.err
	case <-ctx.Done():
	}
	if !p.Owner.TryBeginAbandonedQuery() {
		cancel()
		return nil, contextCause(ctx)
	}
	if !p.spawnGoroutine(func() { awaitAbandonedQuery(p.Owner, done, cancel) }) {
		p.Owner.EndAbandonedQuery()
		cancel()
	}
	return nil, contextCause(ctx)
}

// fetchAnswer sends q over c, returns the response, and calls c.releaseQuery. The error is a connectionError if the
// server has ended the connection or only this exchange, localerror.ErrNoStream if q was not sent, and ErrClosed if the
// transport is closed.
func (p *protocolTransport) fetchAnswer(ctx context.Context, c *queryInFlight, q *wire.Query) (*wire.Answer, error) {
	start := time.Now()
	b, err := c.Exchange(ctx, q.Append(nil, 0, wire.PackOptions{Size: p.Size, Pad: true}))
	if ctx.Err() == nil && errors.Is(err, net.ErrClosed) {
		c.broken.Store(true)
	}
	if errors.Is(err, localerror.ErrNoStream) {
		c.lowerLimit()
	}
	answers, others := c.releaseQuery(err == nil)
	var status StatusError
	switch {
	case p.ctx.Err() != nil:
		return nil, ErrClosed
	case errors.Is(err, localerror.ErrNoStream):
		return nil, err
	case err != nil && ctx.Err() == nil && !errors.As(err, &status):
		if !c.hasEnded() {
			answers, others = 0, false // the server has ended this exchange alone
		}
		return nil, &connectionError{error: &closedByServerError{err}, sent: true, answers: answers, hadOthers: others}
	case err != nil:
		return nil, err
	}
	c.lastAnswer.Store(time.Now().UnixNano())
	if err := q.CheckResponse(b, 0); err != nil {
		p.Owner.RecordIgnored(err)
		return nil, err
	}
	a, err := wire.ParseAnswer(b, q)
	if err != nil {
		p.Owner.RecordIgnored(err)
		return nil, err
	}
	p.Owner.RecordAnswer(time.Since(start), 0)
	return a, nil
}

// addQuery adds a query to the queries in flight of the connection, and returns it. It may also raise the connection's
// limit of queries in flight. The caller must hold messageConnPool.mu.
func (c *pooledMessageConn) addQuery() *queryInFlight {
	f := &queryInFlight{c, time.Now()}
	c.inFlight = append(c.inFlight, f)
	if c.limit < queriesPerConn && f.began.Sub(c.limitSince) >= growPause {
		// The server may permit more queries by now, and the packet with its higher limit may be lost.
		c.limit, c.limitSince = min(2*c.limit, queriesPerConn), f.began
	}
	return f
}

// lowerLimit lowers the connection's limit of queries in flight to the number of other queries, but not below 1. It
// must be called if this query was not sent because the server permits no more. Queries that began more than
// limitTolerance later do not count.
func (f *queryInFlight) lowerLimit() {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	others := -1
	for _, other := range f.inFlight {
		if other.began.Sub(f.began) <= limitTolerance { // the server has probably refused later queries as well
			others++
		}
	}
	f.limit, f.limitSince = max(1, min(f.limit, others)), time.Now()
}

// releaseQuery records that the query has ended, with a response if answered is true. It returns the number of
// responses of the connection so far, and whether other queries are in flight or were when the connection ended.
func (f *queryInFlight) releaseQuery(answered bool) (answers int, others bool) {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	i := slices.Index(f.inFlight, f)
	f.inFlight = slices.Delete(f.inFlight, i, i+1)
	others = len(f.inFlight) > 0
	if answered {
		f.answers++
	} else if others && f.hasEnded() {
		f.hadOthers = true
	}
	f.pool.wakeWaitingQuery()
	return f.answers, others || f.hadOthers
}
