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
	// not sent the query, because the server permits no more queries at a time, the error is localerror.ErrBusy.
	Exchange(ctx context.Context, query []byte) (response []byte, err error)
	// Done returns a channel that is closed when the connection has ended, or accepts no further queries. The next query then
	// needs another connection.
	Done() <-chan struct{}
	// Close closes the connection. Exchanges in flight end with an error.
	Close() error
}

// RegisterProtocol makes the scheme s, whose protocol another module provides, available to FindScheme and Schemes. It
// must only be called by init functions, and panics if a scheme with this name is registered. dial opens a connection
// to the server that the Config describes. Its context ends after five seconds (dialTimeout).
//
// The protocol must retransmit lost packets itself, because RegisterProtocol sets s.RecoversLoss. With this setting, a
// query without a response is not sent to the same server again, except as a hedge, or if the server has several
// addresses.
func RegisterProtocol(s Scheme, dial func(context.Context, *Config) (MessageConn, error)) {
	if _, ok := schemes[s.Name]; ok {
		panic("dnshedge: scheme " + s.Name + " is registered twice")
	}
	s.RecoversLoss = true
	registerScheme(s, func(c Config) sender { return newProtocolTransport(c, dial) })
}

// A protocolTransport sends queries over a protocol of another module. A connection carries several queries at the same
// time. There are two pools of connections: for the first query of each question, and for later queries of the
// question, such as hedges. So a hedge does not wait for the stalled connection of the first query.
type protocolTransport struct {
	Config
	// dial opens a connection; see RegisterProtocol.
	dial           func(context.Context, *Config) (MessageConn, error)
	pools          [2]messageConnPool // for the first query of each question, and for later ones
	exclusiveSlots chan struct{}      // semaphore that limits queries with a connection of their own

	ctx    context.Context    // ends when Close is called
	cancel context.CancelFunc // ends ctx
	mu     sync.Mutex         // guards closed; held from the check of closed until wg.Add
	closed bool               // Close was called
	wg     sync.WaitGroup     // counts goroutines that open connections or wait for responses
}

var _ sender = (*protocolTransport)(nil)

// A messageConnPool holds open connections of a protocolTransport. One pool is for the first query of each question,
// another one for later queries of the question. A query that needs a connection of its own gets a pool of its own. A
// messageConnPool is safe for concurrent use.
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

// Exchange implements Transport. n is the number of earlier queries with the same question to this server, and w
// records the connection of q. It returns the response, and the time that q waited for handshakes.
//
// If the connection ends before the response, Exchange sends q again over the same pool, if the connection had carried
// responses. After the first connection, it also does so if that connection was open before q came.
//
// In all other cases, Exchange sends q over a connection of its own if other queries were in flight on the connection,
// and returns the error if not. It also returns the error after eight repetitions (maxRetries).
func (p *protocolTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return p.exchangeExclusively(ctx, q, w)
	}
	var setup time.Duration
	for retries := 0; ; retries++ {
		a, use, err := p.sendQuery(ctx, q, &p.pools[min(n, 1)], w)
		setup += use.setup
		var broken *connectionError
		if !errors.As(err, &broken) || ctx.Err() != nil || retries == maxRetries {
			return a, setup, err
		}
		switch {
		case broken.answers > 0 || use.reused && retries == 0:
		case broken.hadOthers:
			p.Owner.RecordRetry()
			a, more, err := p.exchangeExclusively(ctx, q, w)
			return a, setup + more, err
		default:
			return a, setup, err
		}
		p.Owner.RecordRetry()
	}
}

// exchangeExclusively sends q over a new connection that no other query uses, and records it in w. It returns the
// response, and the time that q waited for the handshake.
//
// The server may close a connection because of q, and other queries must not be lost then. At most maxExclusive of
// these queries run at the same time. A further query waits until one of them ends, and fails with the cause of ctx if
// ctx ends first.
func (p *protocolTransport) exchangeExclusively(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case p.exclusiveSlots <- struct{}{}:
		defer func() { <-p.exclusiveSlots }()
	case <-ctx.Done():
		return nil, 0, contextCause(ctx)
	}
	l := new(messageConnPool)
	a, use, err := p.sendQuery(ctx, q, l, w)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	return a, use.setup, err
}

// SendOnce implements sender. It sends q, a message that the server must not get twice, over a connection of the pool
// for first queries, and records that connection in w. It returns the response a, and in setup the time that q waited
// for handshakes.
//
// written matters only if err is not nil. It is true if q may have been written, because q got a connection.
func (p *protocolTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	a, use, err := p.sendQuery(ctx, q, &p.pools[0], w)
	return a, use.setup, use.connected, err
}

// sendQuery sends q over a connection of the pool l, and records that connection in w. It returns the response a. use
// describes how q got the connection, and is valid even if err is not nil.
//
// q is sent at most once. If a connection did not send q, because the server permits no more queries at a time
// (localerror.ErrBusy), sendQuery acquires a connection again.
func (p *protocolTransport) sendQuery(ctx context.Context, q *wire.Query, l *messageConnPool, w *QueryPath) (a *wire.Answer, use connectionUse, err error) {
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
		w.lastAnswer.Store(&c.lastAnswer)
		a, err = p.waitForAnswer(ctx, c, q)
		if !errors.Is(err, localerror.ErrBusy) || ctx.Err() != nil {
			return a, use, err
		}
	}
}

// acquireConn assigns one query to a connection of the pool l, and returns it as a query in flight. The caller must
// pass c to fetchAnswer or call c.releaseQuery. use describes how the query got the connection. The error is the cause
// of ctx, ErrClosed, or the reason why no connection could be opened.
//
// It opens a connection if there is none, or if each has as many queries in flight as the server probably permits (see
// selectConn). While acquireConn waits for the new connection, it also accepts another connection that gets room.
func (p *protocolTransport) acquireConn(ctx context.Context, l *messageConnPool) (c *queryInFlight, use connectionUse, err error) {
	start := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var o *pendingMessageConn // the opening that the query waits for; nil: none
	for {
		if conn := l.selectConn(o); conn != nil {
			c = conn.addQuery()
			l.wakeWaitingQuery()
			use = connectionUse{connected: true, reused: o == nil || conn != o.conn}
			if o != nil {
				use.setup = time.Since(start)
			}
			return c, use, nil
		}
		if o != nil && o.err != nil && len(l.conns) == 0 {
			return nil, use, o.err
		}
		if o, err = p.joinOpening(l); err != nil {
			return nil, use, err
		}
		if !l.wait(ctx, o) {
			return nil, use, contextCause(ctx)
		}
	}
}

// wait waits until the attempt o to open a connection has ended, or until a connection may have room for another query,
// and returns true. It returns false if ctx ends first. If o is nil, wait only waits for room. The caller must hold
// l.mu, which wait unlocks while it waits.
func (l *messageConnPool) wait(ctx context.Context, o *pendingMessageConn) bool {
	var opened chan struct{}
	if o != nil {
		opened = o.done
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

// selectConn returns the connection that has room for the most further queries. It returns nil if the query must wait
// until another connection is open or has room. The caller must hold l.mu.
//
// If no connection has room, and the pool is full and opens none, a connection with the limit queriesPerConn gets more
// queries than its limit.
//
// o is the attempt to open a connection for which the query has waited, or nil. If no connection has room, and the
// connection that o opened has already ended, selectConn returns this ended connection. The query then fails, instead
// of waiting again.
func (l *messageConnPool) selectConn(o *pendingMessageConn) *pooledMessageConn {
	l.removeEnded()
	if len(l.conns) > 0 {
		c := slices.MinFunc(l.conns, func(a, b *pooledMessageConn) int {
			return cmp.Compare(len(a.inFlight)-a.limit, len(b.inFlight)-b.limit)
		})
		if len(c.inFlight) < c.limit || c.limit == queriesPerConn && len(l.openings) == 0 && l.isFull() {
			return c
		}
	}
	if o != nil && o.conn != nil && o.conn.hasEnded() {
		return o.conn
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

// isFull reports whether the pool must not open another connection now. That is the case if its connections number
// maxSockets or more, or can together carry 800 queries (maxProtocolLoad). Connections that are being opened count. It
// is also the case until nextGrowth, after an additional connection could not be opened.
//
// A pool without connections is never full. The caller must hold l.mu.
func (l *messageConnPool) isFull() bool {
	n := len(l.conns) + len(l.openings)
	return n > 0 && (n >= maxSockets || n*l.connLimit() >= maxProtocolLoad || time.Now().Before(l.nextGrowth))
}

// joinOpening returns the newest attempt to open a connection of the pool l, so that a query can wait for it. If the
// pool is not full, joinOpening may start an attempt: if none is running, or if the running ones are fewer than the
// open connections and too few for the waiting queries.
//
// It returns nil if no attempt is running and the pool is full, and ErrClosed if the transport is closed. The caller
// must hold l.mu.
func (p *protocolTransport) joinOpening(l *messageConnPool) (*pendingMessageConn, error) {
	n := len(l.openings)
	if isShort := n == 0 || n < len(l.conns) && l.waiting >= n*l.connLimit(); isShort && !l.isFull() {
		o := &pendingMessageConn{done: make(chan struct{})}
		if !p.spawnGoroutine(func() { p.openConn(l, o) }) {
			return nil, ErrClosed
		}
		l.openings = append(l.openings, o)
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
// o. It continues even if no query waits for o any more, because the next query needs the connection as well.
func (p *protocolTransport) openConn(l *messageConnPool, o *pendingMessageConn) {
	var conn MessageConn
	err, start := errGoexit, time.Now()
	defer func() { p.finishOpening(l, o, conn, err, time.Since(start)) }()
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	conn, err = p.dial(ctx, &p.Config)
}

// finishOpening ends the opening of a connection. It stores either err or the opened connection conn in o, and adds
// conn to the pool l. took is the time for dialing and the handshake. If the transport or the pool was closed meanwhile,
// it closes conn and stores ErrClosed.
//
// If err is not nil, but the pool has another connection, the pool opens none for five seconds (growPause).
func (p *protocolTransport) finishOpening(l *messageConnPool, o *pendingMessageConn, conn MessageConn, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(o.done)
	l.openings = slices.DeleteFunc(l.openings, func(other *pendingMessageConn) bool { return other == o })
	switch {
	case p.ctx.Err() != nil || l.closed:
		o.err = ErrClosed
		if err == nil {
			_ = conn.Close()
		}
	case err != nil:
		p.forgetAddress()
		o.err = err
		if l.removeEnded(); len(l.conns) > 0 {
			l.nextGrowth = time.Now().Add(growPause)
		}
	default:
		p.Owner.RecordHandshake(took)
		o.conn = &pooledMessageConn{MessageConn: conn, pool: l, limit: l.connLimit(), limitSince: time.Now()}
		l.conns = append(l.conns, o.conn)
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
		defer cancel()
		a, err := p.fetchAnswer(own, c, q)
		done <- result{a, err}
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

// fetchAnswer sends q over c, returns the response, and calls c.releaseQuery.
//
// The error is a connectionError if the server has ended the connection, or the exchange of q without the connection.
// It is localerror.ErrBusy if q was not sent, because the server permits no more queries at a time. It is ErrClosed if
// the transport is closed.
func (p *protocolTransport) fetchAnswer(ctx context.Context, c *queryInFlight, q *wire.Query) (*wire.Answer, error) {
	start := time.Now()
	b, err := c.Exchange(ctx, q.Append(nil, 0, wire.PackOptions{Size: p.Size, Pad: true}))
	if ctx.Err() == nil && errors.Is(err, net.ErrClosed) {
		c.broken.Store(true)
	}
	if errors.Is(err, localerror.ErrBusy) {
		c.lowerLimit()
	}
	answers, others := c.releaseQuery(err == nil)
	var status StatusError
	switch {
	case p.ctx.Err() != nil:
		return nil, ErrClosed
	case errors.Is(err, localerror.ErrBusy):
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

// addQuery adds a query to the queries in flight of the connection, and returns it. The caller must hold
// messageConnPool.mu.
//
// The limit of the connection is the assumed number of queries that the server permits at a time. addQuery doubles a
// limit below queriesPerConn that has not changed for five seconds (growPause), because the server may permit more
// queries now.
func (c *pooledMessageConn) addQuery() *queryInFlight {
	f := &queryInFlight{c, time.Now()}
	c.inFlight = append(c.inFlight, f)
	if c.limit < queriesPerConn && f.began.Sub(c.limitSince) >= growPause {
		c.limit, c.limitSince = min(2*c.limit, queriesPerConn), f.began // the packet with a higher limit may be lost
	}
	return f
}

// lowerLimit lowers the limit of the connection to the number of other queries in flight, but not below 1. It must be
// called if the server has not permitted this query in addition to the others.
//
// Queries that began more than five milliseconds (limitTolerance) after this one do not count, because the server has
// probably not permitted them either.
func (f *queryInFlight) lowerLimit() {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	others := -1
	for _, other := range f.inFlight {
		if other.began.Sub(f.began) <= limitTolerance {
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
