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
	// maxPending is the maximum number of queries in flight on a connection. It is half of the ID space, so that a few
	// random numbers suffice to find an unused ID.
	maxPending = 1 << 15

	// maxAbandoned is the maximum number of abandoned queries in flight on a connection. Some servers never respond to
	// certain queries, whose IDs are then in use until the connection ends.
	maxAbandoned = 4096

	// finalReadTime is how long responses are still read from a connection after a write has failed.
	finalReadTime = time.Second
)

// ErrFrame means that a message from a TCP or TLS stream is shorter than a DNS header.
var ErrFrame = errors.New("dnshedge: frame shorter than a header")

var (
	errShort       = errors.New("dnshedge: message shorter than a header")
	errIdle        = errors.New("dnshedge: connection was idle")             // this side has closed an unused connection
	errUnsolicited = errors.New("dnshedge: message that no query asked for") // message with an ID that no query has

	// errRetired means that a query was not written, because the connection accepts no further queries. The query must use
	// another connection.
	errRetired = errors.New("dnshedge: connection takes no more queries")
)

// A connectionError is the error of a query whose connection has failed. It does not mean that the server has failed,
// so the query may be sent again over another connection.
type connectionError struct {
	error             // reason for the end of the connection
	sent         bool // the server may have received the query
	answers      int  // number of responses that the connection had carried
	hadOthers    bool // other queries were in flight when the connection ended
	endedByProbe bool // the server ended the connection while a probe was in flight
}

func (e *connectionError) Unwrap() error { return e.error }

// MayBeClosedByQuery reports whether err means that the server has ended a connection after it may have received the
// query. The query may then be the reason for the end.
func MayBeClosedByQuery(err error) bool {
	var broken *connectionError
	var ended *closedByServerError
	return IsClosedByServer(err) && (errors.As(err, &broken) || errors.As(err, &ended))
}

// A closedByServerError is the error of an HTTP request whose connection or stream the server has closed or reset.
// errors.Is(err, io.ErrUnexpectedEOF) is true for it, so that IsClosedByServer is true as well.
type closedByServerError struct{ error }

func (e *closedByServerError) Unwrap() error        { return e.error }
func (e *closedByServerError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// A connection is a TCP or TLS connection that several queries share. It belongs to one streamConnPool. It ends when
// closeWithError is called, and is safe for concurrent use.
type connection struct {
	stream         *streamTransport // the transport that has opened the connection
	owner          Owner            // the transport's Owner
	pool           *streamConnPool  // the pool of the connection
	conn           net.Conn         // the TCP or TLS connection
	tcp            net.Conn         // the TCP connection that carries TLS, or conn
	writeSemaphore chan struct{}    // semaphore that serializes writes; capacity 1, full while a query is written
	dead           chan struct{}    // closed when the connection has ended

	lastAnswer atomic.Int64 // time of the last response, in Unix nanoseconds; 0: none

	mu           sync.Mutex               // guards the fields below
	err          error                    // reason for the end of the connection; nil: it has not ended
	hadOthers    bool                     // more than one query was in flight when the connection ended
	endedByProbe bool                     // the server ended the connection while a probe was in flight
	waiting      map[uint16]*pendingQuery // queries in flight by ID, including abandoned queries
	liveCount    int                      // number of elements of waiting that are not abandoned
	queries      int                      // number of queries since the connection was opened
	answers      int                      // number of responses since the connection was opened
	probes       int                      // number of probes since the last response to a caller's query
	probing      bool                     // a probe was sent or skipped, and nothing has arrived since
	stallTimer   *time.Timer              // calls probeIfSilent if queries wait and nothing arrives
	idleTimer    *time.Timer              // calls closeIfIdle; runs while no caller waits
	idleTimeout  time.Duration            // time after which an unused connection is closed
	retired      bool                     // not in its pool any more; accepts no further queries
	stopWatching func() bool              // undoes context.AfterFunc on the context of the transport
}

// A pendingQuery is a query in flight on a connection. It is abandoned when its caller no longer waits for the
// response. An abandoned query keeps its ID, so that no other query gets its late response (RFC 7766 §6.2.1).
type pendingQuery struct {
	q         *wire.Query // the question that was sent
	sent      time.Time   // time at which the query got its ID
	answer    chan []byte // receives the response message; capacity 1, so that the reading goroutine never waits
	abandoned bool        // no caller waits for the response; guarded by connection.mu
	probe     bool        // the query is a probe of this connection, without a caller
	isCounted bool        // EndAbandonedQuery must be called when the query ends; guarded by connection.mu
}

// newConnection returns a connection over conn, which the transport s has opened for its pool l. The connection ends
// with ErrClosed when s is closed. The caller must run readMessages in a new goroutine.
func newConnection(s *streamTransport, l *streamConnPool, conn net.Conn) *connection {
	c := &connection{
		stream: s, owner: s.Owner, pool: l, conn: conn, tcp: conn,
		writeSemaphore: make(chan struct{}, 1), dead: make(chan struct{}), waiting: make(map[uint16]*pendingQuery),
		idleTimeout: defaultIdleTimeout,
	}
	if t, ok := conn.(*tls.Conn); ok {
		c.tcp = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleTimer = time.AfterFunc(c.idleTimeout, c.closeIfIdle)
	c.stopWatching = context.AfterFunc(s.ctx, func() { c.closeWithError(ErrClosed) })
	return c
}

// sendAndWait sends q and returns the response message. The error is errRetired if q was not sent because the
// connection accepts no further queries. It is a connectionError if the connection ends, and the cause of ctx if ctx
// ends first.
func (c *connection) sendAndWait(ctx context.Context, q *wire.Query) ([]byte, error) {
	p := &pendingQuery{q: q, answer: make(chan []byte, 1)}
	id, queries, err := c.registerQuery(p)
	if errors.Is(err, errRetired) {
		c.retireConnection()
	}
	if err != nil {
		return nil, err
	}
	if c.pool.hasReachedQueryLimit(queries) {
		c.retireConnection()
	}
	select {
	case c.writeSemaphore <- struct{}{}:
	case <-c.dead:
		return nil, c.closedError(false)
	case <-ctx.Done():
		c.releaseID(id)
		return nil, contextCause(ctx)
	}
	err = c.writeQuery(q, id)
	<-c.writeSemaphore
	if err != nil {
		c.handleWriteError(err)
	}
	select {
	case b := <-p.answer:
		return b, nil
	case <-ctx.Done():
		c.abandonQuery(p)
		return nil, contextCause(ctx)
	case <-c.dead:
		select {
		case b := <-p.answer:
			return b, nil
		default:
			return nil, c.closedError(true)
		}
	}
}

// writeQuery writes q with the given ID to the connection. The caller must hold writeSemaphore.
func (c *connection) writeQuery(q *wire.Query, id uint16) error {
	// A connection whose peer does not read is treated as dead.
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.owner.StallTimeout()))
	c.owner.RecordQuery()
	return WriteFrame(c.conn, q, id, wire.PackOptions{Size: c.stream.Size, Keepalive: true, Pad: c.stream.security != nil})
}

// WriteFrame writes the query q to the stream c, with its length before it (RFC 1035 §4.2.2). id is the ID of the
// message. options holds the settings of the message that depend on the transport.
func WriteFrame(c io.Writer, q *wire.Query, id uint16, options wire.PackOptions) error {
	frame := q.Append(make([]byte, 2, 512), id, options)
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	_, err := c.Write(frame)
	return err
}

// ReadFrame reads one DNS message from a stream. A length of two bytes precedes each message (RFC 1035 §4.2.2) and is
// not returned. The error is ErrFrame if the message is shorter than a DNS header, or else the error of the reader.
func ReadFrame(in io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint16(head[:]))
	if len(frame) < wire.HeaderLen {
		return nil, ErrFrame
	}
	_, err := io.ReadFull(in, frame)
	return frame, err
}

// registerQuery adds p to the queries in flight, with an unused ID. queries is the number registered so far. The caller
// must write p or call releaseID. The error is errRetired if the connection accepts no more queries, or a
// connectionError if it has ended.
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
		c.stallTimer = time.AfterFunc(c.owner.StallTimeout()/2, c.probeIfSilent)
	} else if c.liveCount == 1 && !c.probing {
		c.stallTimer.Reset(c.owner.StallTimeout() / 2)
	}
	return id, c.queries, nil
}

// assignID gives p an unused random ID, adds p to the queries that wait for a response, and returns the ID. The error
// is errRetired if the connection accepts no further queries, or a connectionError if it has ended. The caller must
// hold mu.
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

// releaseID removes a query that registerQuery has added, because the query was not written. Another query can then use
// its ID.
func (c *connection) releaseID(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.waiting[id]; p != nil && c.err == nil {
		delete(c.waiting, id)
		c.recordQueryEnd()
	}
}

// recordQueryEnd records that a caller no longer waits for a query on the connection, because the query has ended.
// After the last query, it starts the idle timer. The caller must hold mu.
func (c *connection) recordQueryEnd() {
	if c.liveCount--; c.liveCount == 0 {
		c.stallTimer.Stop()
		c.startIdleTimer()
	}
}

// startIdleTimer starts the idle timer after the last query for which a caller has waited. A retired connection is
// closed at once, or after Owner.AbandonedQueryLifetime if abandoned queries are in flight. The caller must hold mu.
func (c *connection) startIdleTimer() {
	switch {
	case !c.retired:
		c.idleTimer.Reset(c.idleTimeout)
	case len(c.waiting) > 0:
		c.idleTimer.Reset(c.owner.AbandonedQueryLifetime())
	default:
		c.idleTimer.Reset(0)
	}
}

// abandonQuery records that the caller of p no longer waits for the response. p keeps its ID, and the latency of a late
// response is still measured. It has no effect if the response has arrived or the connection has ended.
func (c *connection) abandonQuery(p *pendingQuery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || p.abandoned || len(p.answer) > 0 {
		return
	}
	p.abandoned = true
	p.isCounted = c.owner.TryBeginAbandonedQuery()
	if p.isCounted {
		// The response or the end of the connection may end it earlier.
		time.AfterFunc(c.owner.AbandonedQueryLifetime(), func() { c.endAbandonedQuery(p) })
	}
	// The stall timer runs on: the connection is as silent as before.
	if c.liveCount--; c.liveCount == 0 {
		c.startIdleTimer()
	}
}

// endAbandonedQuery ends the wait for the response to p: it calls Owner.EndAbandonedQuery, if
// Owner.TryBeginAbandonedQuery has returned true for p. Further calls for p have no effect.
func (c *connection) endAbandonedQuery(p *pendingQuery) {
	c.mu.Lock()
	counted := p.isCounted
	p.isCounted = false
	c.mu.Unlock()
	if counted {
		c.owner.EndAbandonedQuery()
	}
}

// readMessages reads the connection and passes each message to its query, until the connection ends.
func (c *connection) readMessages() {
	defer c.closeWithError(ErrFrame) // has an effect only if Read calls runtime.Goexit
	in := bufio.NewReaderSize(c.conn, 4096)
	for {
		frame, err := ReadFrame(in)
		if err != nil {
			if err == ErrFrame {
				c.owner.RecordIgnored(err)
			}
			c.closeWithError(err)
			return
		}
		if err := c.deliverMessage(frame); err != nil {
			c.owner.RecordIgnored(err)
		}
	}
}

// deliverMessage passes a received message, frame, to the query with the same ID, if it is the response to that query.
// Otherwise it returns an error that says why the message is no response.
func (c *connection) deliverMessage(frame []byte) error {
	now := time.Now()
	id := binary.BigEndian.Uint16(frame)
	c.mu.Lock()
	p := c.waiting[id]
	if p == nil {
		c.mu.Unlock()
		return errUnsolicited
	}
	if err := p.q.CheckResponse(frame, id); err != nil {
		c.mu.Unlock()
		return err
	}
	delete(c.waiting, id)
	c.answers++
	c.lastAnswer.Store(now.UnixNano())
	p.answer <- frame
	if !p.abandoned {
		c.recordQueryEnd()
	}
	c.probing = false
	if !p.probe {
		c.probes = 0
	}
	if c.liveCount > 0 && !c.retired {
		// The time until the next probe doubles with each probe that had a response.
		c.stallTimer.Reset(c.owner.StallTimeout() / 2 << min(c.probes, 8))
	} else {
		c.stallTimer.Stop()
	}
	drained := c.retired && c.liveCount == 0
	c.mu.Unlock()
	c.endAbandonedQuery(p)
	c.owner.RecordAnswer(now.Sub(p.sent), kernelRTT(c.tcp))
	if drained {
		c.closeWithError(errIdle)
	}
	return nil
}

// applyKeepalive sets the idle timeout to d, as the server asks for (RFC 7828), but at most to two minutes. If d is
// 0, the connection accepts no further queries and is closed when the last query has ended (§3.4).
func (c *connection) applyKeepalive(d time.Duration) {
	if d == 0 {
		c.retireConnection()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleTimeout = min(d, maxIdleTimeout)
	if c.err == nil && c.liveCount == 0 {
		c.startIdleTimer()
	}
}

// closeIfIdle closes the connection if no caller waits for a query on it. The idle timer calls it.
func (c *connection) closeIfIdle() {
	c.mu.Lock()
	busy := c.liveCount > 0
	c.mu.Unlock()
	if !busy {
		c.closeWithError(errIdle)
	}
}

// probeIfSilent is called by a timer if queries are in flight and nothing has arrived for some time. If permitted, the
// first call sends a probe (a query for the root's NS records). If nothing arrives until the second call, later queries
// use another connection.
func (c *connection) probeIfSilent() {
	c.mu.Lock()
	if c.err != nil || c.retired {
		c.mu.Unlock()
		return
	}
	if c.probing {
		c.mu.Unlock()
		c.retireConnection()
		return
	}
	c.probing = true
	c.probes++
	c.stallTimer.Reset(c.owner.StallTimeout() / 2)
	if c.stream.probing.areProbesDisabled() { // the second call retires the connection all the same
		c.mu.Unlock()
		return
	}
	id, err := c.assignID(&pendingQuery{q: wire.RootServers, answer: make(chan []byte, 1), abandoned: true, probe: true})
	c.mu.Unlock()
	if err != nil {
		return
	}
	select {
	case c.writeSemaphore <- struct{}{}:
		err = c.writeQuery(wire.RootServers, id)
		<-c.writeSemaphore
	case <-c.dead:
	}
	if err != nil {
		c.handleWriteError(err)
	}
}

// handleWriteError ends the connection because a write has failed with err. If the server has closed the connection,
// readMessages continues for a second (finalReadTime), to read the responses that the server sent before.
func (c *connection) handleWriteError(err error) {
	if !isClosedByPeer(err) {
		c.closeWithError(err)
		return
	}
	c.retireConnection()
	_ = c.conn.SetReadDeadline(time.Now().Add(finalReadTime))
}

// retireConnection retires the connection: it accepts no further queries, and is closed when the queries in flight have
// ended. The pool opens another connection for the next query.
func (c *connection) retireConnection() {
	c.removeFromPool() // first, because a query that finds the connection retired asks the pool again
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
		c.closeWithError(errIdle)
	}
}

// removeFromPool removes the connection from its pool, so that no further query uses it.
func (c *connection) removeFromPool() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.pool.conn == c {
		c.pool.conn = nil
	}
}

// closeWithError closes the connection and ends all queries on it with err. Further calls have no effect.
func (c *connection) closeWithError(err error) {
	c.removeFromPool()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err, c.hadOthers = err, len(c.waiting) > 1
	var abandoned []*pendingQuery
	for _, p := range c.waiting {
		c.endedByProbe = c.endedByProbe || isClosedByPeer(err) && isProbeQuestion(p.q)
		if p.isCounted {
			abandoned = append(abandoned, p)
		}
	}
	c.idleTimer.Stop()
	if c.stallTimer != nil {
		c.stallTimer.Stop()
	}
	if c.endedByProbe {
		c.stream.probing.disableProbes()
	}
	close(c.dead)
	c.stopWatching()
	answers, cut := c.answers, c.liveCount > 0 && isClosedByPeer(err) && !c.endedByProbe
	c.mu.Unlock()
	c.pool.recordConnEnd(answers, cut)
	_ = c.conn.Close()
	for _, p := range abandoned {
		c.endAbandonedQuery(p)
	}
}

// isClosedByPeer reports whether err, the reason for the end of a connection, was caused by the server. It returns
// false if this side has closed the connection or a timeout has expired.
func isClosedByPeer(err error) bool {
	var t net.Error
	return err != errIdle && err != ErrFrame && err != ErrClosed && !(errors.As(err, &t) && t.Timeout())
}

// closedError returns a connectionError for a query on this connection, which must have ended. sent must be true if the
// query may have been written.
func (c *connection) closedError(sent bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &connectionError{c.err, sent, c.answers, c.hadOthers, c.endedByProbe}
}
