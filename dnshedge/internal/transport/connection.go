package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	// maxPending is the maximum number of queries in flight on a connection. It is half of the ID space, so that a random
	// ID is soon free.
	maxPending = 1 << 15

	// maxAbandoned is the maximum number of abandoned queries among them. Some servers never answer certain queries, and
	// the IDs of these are in use until the connection ends.
	maxAbandoned = 4096

	// finalReadTime is how long a connection is read after a write has failed.
	finalReadTime = time.Second
)

var (
	errShort       = errors.New("dnshedge: message shorter than a header")
	errFrame       = errors.New("dnshedge: frame shorter than a header")
	errIdle        = errors.New("dnshedge: connection was idle")
	errUnsolicited = errors.New("dnshedge: message that no query asked for") // message with an ID of no query

	// errRetired is the error of a query that was not written, because its connection accepts no further queries.
	errRetired = errors.New("dnshedge: connection takes no more queries")
)

// A connectionError is the failure of a connection. It does not mean that the server fails.
type connectionError struct {
	err          error
	sent         bool // the server may have received the query
	answers      int  // number of answers over the connection before
	hadOthers    bool // other queries were in flight on the connection when it ended
	endedByProbe bool // the server has ended the connection while a probe was in flight
}

func (e *connectionError) Error() string { return e.err.Error() }
func (e *connectionError) Unwrap() error { return e.err }

// MayBeClosedByQuery reports whether err means that the server has ended a connection after it may have received the
// query. The query may then be the reason.
func MayBeClosedByQuery(err error) bool {
	var broken *connectionError
	var ended *closedByServerError
	return IsClosedByServer(err) && (errors.As(err, &broken) || errors.As(err, &ended))
}

// A closedByServerError is the error of an HTTP request whose connection or stream the server has ended.
type closedByServerError struct{ err error }

func (e *closedByServerError) Error() string        { return e.err.Error() }
func (e *closedByServerError) Unwrap() error        { return e.err }
func (e *closedByServerError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// A connection is a TCP or TLS connection that several queries share. failQueries ends it.
type connection struct {
	stream *streamTransport
	owner  Owner           // owner of the transport
	pool   *streamConnPool // the pool that it belongs to
	conn   net.Conn
	tcp    net.Conn      // connection below TLS, or conn
	write  chan struct{} // write lock; capacity 1, full while a query is written
	dead   chan struct{} // closed when the connection has ended

	lastAnswer atomic.Int64 // time of the last answer, Unix ns; 0: none

	mu           sync.Mutex               // guards the fields below
	err          error                    // why the connection has ended; nil: it has not
	hadOthers    bool                     // more than one query was in flight when it ended
	endedByProbe bool                     // the server has ended it while a probe was in flight
	waiting      map[uint16]*pendingQuery // queries in flight by ID, with abandoned queries
	liveCount    int                      // queries in waiting that are not abandoned
	queries      int                      // number of queries so far
	answers      int                      // number of answers so far
	probes       int                      // number of probes since the last answer to a caller
	probing      bool                     // a probe was sent, and nothing has arrived since
	stallTimer   *time.Timer              // runs while queries wait and nothing arrives
	idleTimer    *time.Timer              // idle timer; runs while no query waits
	idleTimeout  time.Duration            // idle timeout
	retired      bool                     // detached from its pool; accepts no further queries
	stopWatching func() bool              // stops watching the context of the transport
}

// A pendingQuery is a query in flight. An abandoned query keeps its ID, so that no other query gets the ID (RFC 7766
// §6.2.1).
type pendingQuery struct {
	q         *wire.Query
	sent      time.Time   // time of the query
	answer    chan []byte // capacity 1, so that the reader never waits
	abandoned bool        // guarded by connection.mu
	probe     bool        // a probe: no caller waits
	isCounted bool        // BeginAbandoned was called; guarded by connection.mu
}

// newConnection returns the state of a connection that was opened for a pool. The caller must run readMessages.
func newConnection(s *streamTransport, l *streamConnPool, conn net.Conn) *connection {
	c := &connection{
		stream: s, owner: s.Owner, pool: l, conn: conn, tcp: conn,
		write: make(chan struct{}, 1), dead: make(chan struct{}), waiting: make(map[uint16]*pendingQuery),
		idleTimeout: defaultIdleTimeout,
	}
	if t, ok := conn.(*tls.Conn); ok {
		c.tcp = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleTimer = time.AfterFunc(c.idleTimeout, c.closeIfIdle)
	c.stopWatching = context.AfterFunc(s.ctx, func() { c.failQueries(ErrClosed) })
	return c
}

// sendAndWait sends q and returns the message that answers it. The error is errRetired if q was not sent, because the
// connection accepts no further queries.
func (c *connection) sendAndWait(ctx context.Context, q *wire.Query) ([]byte, error) {
	p := &pendingQuery{q: q, answer: make(chan []byte, 1)}
	id, queries, err := c.registerQuery(p)
	if errors.Is(err, errRetired) {
		c.stopQueries()
	}
	if err != nil {
		return nil, err
	}
	if c.pool.isFull(queries) {
		c.stopQueries()
	}
	select {
	case c.write <- struct{}{}:
	case <-c.dead:
		return nil, c.closeReason(false)
	case <-ctx.Done():
		c.releaseID(id)
		return nil, causeOf(ctx)
	}
	err = c.writeQuery(q, id)
	<-c.write
	if err != nil {
		c.endWriting(err)
	}
	select {
	case b := <-p.answer:
		return b, nil
	case <-ctx.Done():
		c.abandonQuery(p)
		return nil, causeOf(ctx)
	case <-c.dead:
		select {
		case b := <-p.answer:
			return b, nil
		default:
			return nil, c.closeReason(true)
		}
	}
}

// writeQuery writes a query. The caller holds the write lock.
func (c *connection) writeQuery(q *wire.Query, id uint16) error {
	frame := make([]byte, 2, 512)
	frame = q.Append(frame, id, wire.PackOptions{Size: c.stream.Size, Keepalive: true, Pad: c.stream.security != nil})
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	// A connection whose peer does not read is treated as dead.
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.owner.StallTimeout()))
	c.owner.RecordQuery()
	_, err := c.conn.Write(frame)
	return err
}

// registerQuery assigns an ID to a query that is about to be written. It returns the ID and the number of queries of
// the connection so far. The error is errRetired if the connection accepts no further queries.
func (c *connection) registerQuery(p *pendingQuery) (id uint16, queries int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, err = c.assignID(p); err != nil {
		return 0, 0, err
	}
	c.liveCount++
	c.queries++
	c.idleTimer.Stop()
	if c.stallTimer == nil {
		c.stallTimer = time.AfterFunc(c.owner.StallTimeout()/2, c.probeSilent)
	} else if c.liveCount == 1 && !c.probing {
		c.stallTimer.Reset(c.owner.StallTimeout() / 2)
	}
	return id, c.queries, nil
}

// assignID assigns a free ID to a query. The error is a connectionError if the connection has ended, and errRetired if
// it accepts no further queries. The caller holds mu.
func (c *connection) assignID(p *pendingQuery) (id uint16, err error) {
	if c.err != nil {
		return 0, &connectionError{c.err, false, c.answers, c.hadOthers, c.endedByProbe}
	}
	if n := len(c.waiting); c.retired || n >= maxPending || n-c.liveCount >= maxAbandoned {
		return 0, errRetired
	}
	id = wire.RandomID()
	for c.waiting[id] != nil {
		id = wire.RandomID()
	}
	p.sent = time.Now()
	c.waiting[id] = p
	return id, nil
}

// releaseID frees the ID of a query that was not written.
func (c *connection) releaseID(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.waiting[id]; p != nil && c.err == nil {
		delete(c.waiting, id)
		c.removeQuery()
	}
}

// removeQuery decrements live and starts the idle timer when no query is left. The caller holds mu.
func (c *connection) removeQuery() {
	if c.liveCount--; c.liveCount == 0 {
		c.stallTimer.Stop()
		c.idleTimer.Reset(c.idleTimeout)
	}
}

// abandonQuery marks a query as abandoned, because its caller has left. If the owner allows, the query waits on, and
// its answer is measured.
func (c *connection) abandonQuery(p *pendingQuery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || p.abandoned || len(p.answer) > 0 {
		return
	}
	p.abandoned = true
	p.isCounted = c.owner.BeginAbandoned()
	if p.isCounted {
		time.AfterFunc(c.owner.AbandonedLifetime(), func() { c.endAbandoned(p) })
	}
	// The silence timer runs on: that nobody waits any more does not end a silence.
	if c.liveCount--; c.liveCount == 0 && c.retired {
		c.idleTimer.Reset(c.owner.AbandonedLifetime())
	} else if c.liveCount == 0 {
		c.idleTimer.Reset(c.idleTimeout)
	}
}

// endAbandoned reports to the owner that an abandoned query has ended, with or without an answer. Only the first call
// for a query has an effect.
func (c *connection) endAbandoned(p *pendingQuery) {
	c.mu.Lock()
	counted := p.isCounted
	p.isCounted = false
	c.mu.Unlock()
	if counted {
		c.owner.EndAbandoned()
	}
}

// readMessages delivers the messages of the server to their queries until the connection ends.
func (c *connection) readMessages() {
	defer c.failQueries(errFrame) // unless it has failed, if Read ends the goroutine
	in := bufio.NewReaderSize(c.conn, 4096)
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			c.failQueries(err)
			return
		}
		n := int(binary.BigEndian.Uint16(head[:]))
		if n < wire.HeaderLen {
			c.owner.RecordIgnored(errFrame)
			c.failQueries(errFrame)
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(in, frame); err != nil {
			c.failQueries(err)
			return
		}
		if err := c.deliverMessage(frame); err != nil {
			c.owner.RecordIgnored(err)
		}
	}
}

// deliverMessage delivers a message to the query that it answers. The error says why it answers none.
func (c *connection) deliverMessage(frame []byte) error {
	now := time.Now()
	id := binary.BigEndian.Uint16(frame)
	c.mu.Lock()
	p := c.waiting[id]
	if p == nil {
		c.mu.Unlock()
		return errUnsolicited
	}
	if err := p.q.Check(frame, id); err != nil {
		c.mu.Unlock()
		return err
	}
	delete(c.waiting, id)
	c.answers++
	c.lastAnswer.Store(now.UnixNano())
	p.answer <- frame
	if !p.abandoned {
		c.removeQuery()
	}
	c.probing = false
	if !p.probe {
		c.probes = 0
	}
	if c.liveCount > 0 && !c.retired {
		// After each probe that was answered, the next one comes twice as late.
		c.stallTimer.Reset(c.owner.StallTimeout() / 2 << min(c.probes, 8))
	} else {
		c.stallTimer.Stop()
	}
	drained := c.retired && c.liveCount == 0
	c.mu.Unlock()
	c.endAbandoned(p)
	c.owner.RecordAnswer(now.Sub(p.sent), kernelRTT(c.tcp))
	if drained {
		c.failQueries(errIdle)
	}
	return nil
}

// applyKeepalive applies the server's idle timeout (RFC 7828). 0 closes the connection as soon as no query waits
// (§3.4).
func (c *connection) applyKeepalive(d time.Duration) {
	if d == 0 {
		c.stopQueries()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleTimeout = min(d, maxIdleTimeout)
	if c.err == nil && c.liveCount == 0 {
		c.idleTimer.Reset(c.idleTimeout)
	}
}

// closeIfIdle closes the connection if no query waits on it.
func (c *connection) closeIfIdle() {
	c.mu.Lock()
	busy := c.liveCount > 0
	c.mu.Unlock()
	if !busy {
		c.failQueries(errIdle)
	}
}

// probeSilent is called when nothing has arrived for half of the stall timeout while queries wait. It sends a probe,
// the NS of the root, which every resolver can answer at once. If nothing arrives in the other half, it is called again
// and retires the connection. If probes are disabled, it retires the connection then without a probe.
func (c *connection) probeSilent() {
	c.mu.Lock()
	if c.err != nil || c.retired {
		c.mu.Unlock()
		return
	}
	if c.probing {
		c.mu.Unlock()
		c.stopQueries()
		return
	}
	c.probing = true
	c.probes++
	c.stallTimer.Reset(c.owner.StallTimeout() / 2)
	if c.stream.probing.endsConnections() {
		c.mu.Unlock()
		return
	}
	id, err := c.assignID(&pendingQuery{q: wire.RootServers, answer: make(chan []byte, 1), abandoned: true, probe: true})
	c.mu.Unlock()
	if err != nil {
		return
	}
	select {
	case c.write <- struct{}{}:
		err = c.writeQuery(wire.RootServers, id)
		<-c.write
	case <-c.dead:
	}
	if err != nil {
		c.endWriting(err)
	}
}

// endWriting ends a connection after a write error. If the server has closed the connection, the answers that it sent
// before are read first.
func (c *connection) endWriting(err error) {
	if !isClosedByPeer(err) {
		c.failQueries(err)
		return
	}
	c.stopQueries()
	_ = c.conn.SetReadDeadline(time.Now().Add(finalReadTime))
}

// stopQueries retires the connection: the pool opens another one for the next query. It is closed when the queries in
// flight have ended, each at the end of its context at the latest.
func (c *connection) stopQueries() {
	c.detachFromPool() // first, or a query that finds it retired would find it again
	c.mu.Lock()
	if c.err != nil || c.retired {
		c.mu.Unlock()
		return
	}
	c.retired = true
	drained := c.liveCount == 0
	if c.stallTimer != nil {
		c.stallTimer.Stop()
	}
	c.idleTimer.Stop()
	c.mu.Unlock()
	if drained {
		c.failQueries(errIdle)
	}
}

// detachFromPool removes the connection from its pool.
func (c *connection) detachFromPool() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.pool.conn == c {
		c.pool.conn = nil
	}
}

// failQueries closes the connection and ends the waiting queries with err. Only the first call has an effect.
func (c *connection) failQueries(err error) {
	c.detachFromPool()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err, c.hadOthers = err, len(c.waiting) > 1
	var abandoned []*pendingQuery
	for _, p := range c.waiting {
		c.endedByProbe = c.endedByProbe || isClosedByPeer(err) && isProbe(p.q)
		if p.isCounted {
			abandoned = append(abandoned, p)
		}
	}
	c.idleTimer.Stop()
	if c.stallTimer != nil {
		c.stallTimer.Stop()
	}
	if c.endedByProbe {
		c.stream.probing.recordConnEnd()
	}
	close(c.dead)
	c.stopWatching()
	answers, cut := c.answers, c.liveCount > 0 && isClosedByPeer(err) && !c.endedByProbe
	c.mu.Unlock()
	c.pool.recordEnd(answers, cut)
	_ = c.conn.Close()
	for _, p := range abandoned {
		c.endAbandoned(p)
	}
}

// isClosedByPeer reports whether err, the end of a connection, was caused by the server. It was not if this side closed
// the connection or a timeout expired.
func isClosedByPeer(err error) bool {
	var t net.Error
	return err != errIdle && err != errFrame && err != ErrClosed && !(errors.As(err, &t) && t.Timeout())
}

// closeReason returns the connectionError for a query on the connection, which has ended. sent reports whether the
// query may have been written.
func (c *connection) closeReason(sent bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &connectionError{c.err, sent, c.answers, c.hadOthers, c.endedByProbe}
}
