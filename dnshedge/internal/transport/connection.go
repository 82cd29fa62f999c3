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
	// maxPending is how many queries a connection may have in flight. It is half of
	// the IDs there are, so that a free one is soon found at random.
	maxPending = 1 << 15

	// maxAbandoned is how many of them may be abandoned. There are servers that never
	// answer some queries, and the IDs of those are not free while the connection lives.
	maxAbandoned = 4096

	// lastRead is how long answers are read from a connection that cannot be written to.
	lastRead = time.Second
)

var (
	errShort  = errors.New("dnshedge: message shorter than a header")
	errFrame  = errors.New("dnshedge: frame shorter than a header")
	errIdle   = errors.New("dnshedge: connection was idle")
	errForged = errors.New("dnshedge: message that no query asked for")

	// errRetired is why a query was not written: its connection takes no more.
	errRetired = errors.New("dnshedge: connection takes no more queries")
)

// connectionError is a failure of a connection, and says nothing about the server.
type connectionError struct {
	err     error
	sent    bool // the server may have received the query
	answers int  // that came over the connection before
	others  bool // queries were under way besides, when it ended
	probed  bool // one of those that were under way was a probe, and the server has ended it
}

func (e *connectionError) Error() string { return e.err.Error() }
func (e *connectionError) Unwrap() error { return e.err }

// MayBeClosedByQuery reports whether an error says that the server has ended a connection after it may have got a query over it: then the query may
// be the reason.
func MayBeClosedByQuery(err error) bool {
	var broken *connectionError
	var ended *closedByServerError
	return IsClosedByServer(err) && (errors.As(err, &broken) || errors.As(err, &ended))
}

// An closedByServerError is why a request has failed whose connection the server has ended.
type closedByServerError struct{ err error }

func (e *closedByServerError) Error() string        { return e.err.Error() }
func (e *closedByServerError) Unwrap() error        { return e.err }
func (e *closedByServerError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// connection is one connection of a stream. It ends by fail, for whatever reason.
type connection struct {
	stream *streamTransport
	owner  Owner // the stream's
	lane   *streamLane
	conn   net.Conn
	tcp    net.Conn      // below TLS, or conn
	write  chan struct{} // capacity 1: full while somebody writes
	dead   chan struct{} // closed when the connection is

	carried atomic.Int64 // when the last answer came, Unix ns; 0: none has

	mu      sync.Mutex // guards the fields below
	err     error      // why the connection is dead
	crowded bool       // more than one query waited then
	probed  bool       // a probe did, and the server has ended it
	waiting map[uint16]*pendingQuery
	live    int           // how many of waiting are not abandoned
	queries int           // that it got
	answers int           // that came
	probes  int           // sent since the last answer to a caller
	probing bool          // nothing arrived since the last of them
	silence *time.Timer   // runs while queries wait and nothing arrives
	rest    *time.Timer   // runs since no query waits
	idle    time.Duration // after which it is closed
	retired bool          // the lane has let go of it, and it takes no more queries
	unwatch func() bool   // ends waiting for the end of the stream
}

// pendingQuery is a query in flight. It stays in waiting when it is abandoned, so that
// its ID is not given to another (RFC 7766 §6.2.1).
type pendingQuery struct {
	q         *wire.Query
	sent      time.Time
	answer    chan []byte // capacity 1, so that the reader never waits
	abandoned bool        // guarded by connection.mu
	probe     bool        // no caller waits or ever did
	counted   bool        // the owner counts it as abandoned; guarded by connection.mu
}

func newConnection(s *streamTransport, l *streamLane, conn net.Conn) *connection {
	c := &connection{
		stream: s, owner: s.Owner, lane: l, conn: conn, tcp: conn,
		write: make(chan struct{}, 1), dead: make(chan struct{}), waiting: make(map[uint16]*pendingQuery),
		idle: idleTime,
	}
	if t, ok := conn.(*tls.Conn); ok {
		c.tcp = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = time.AfterFunc(c.idle, c.closeIfIdle)
	c.unwatch = context.AfterFunc(s.ctx, func() { c.failQueries(ErrClosed) })
	return c
}

// sendAndWait sends q and returns the message that answers it.
func (c *connection) sendAndWait(ctx context.Context, q *wire.Query) ([]byte, error) {
	p := &pendingQuery{q: q, answer: make(chan []byte, 1)}
	id, queries, err := c.registerQuery(p)
	if errors.Is(err, errRetired) {
		c.stopQueries()
	}
	if err != nil {
		return nil, err
	}
	if c.lane.isFull(queries) {
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

// writeQuery writes a query. The caller holds write.
func (c *connection) writeQuery(q *wire.Query, id uint16) error {
	frame := make([]byte, 2, 512)
	frame = q.Append(frame, id, wire.Shape{Size: c.stream.Size, Keepalive: true, Pad: c.stream.security != nil})
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	// A connection whose peer does not read is treated as dead.
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.owner.StallTimeout()))
	c.owner.RecordQuery()
	_, err := c.conn.Write(frame)
	return err
}

// registerQuery finds an ID for a query that is about to be written, and returns how many
// the connection has got by now.
func (c *connection) registerQuery(p *pendingQuery) (id uint16, queries int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, err = c.assignID(p); err != nil {
		return 0, 0, err
	}
	c.live++
	c.queries++
	c.rest.Stop()
	if c.silence == nil {
		c.silence = time.AfterFunc(c.owner.StallTimeout()/2, c.probeSilent)
	} else if c.live == 1 && !c.probing {
		c.silence.Reset(c.owner.StallTimeout() / 2)
	}
	return id, c.queries, nil
}

// assignID finds an ID for a query, or returns errRetired if the connection takes no
// more, or must not from now on. The caller holds mu.
func (c *connection) assignID(p *pendingQuery) (id uint16, err error) {
	if c.err != nil {
		return 0, &connectionError{c.err, false, c.answers, c.crowded, c.probed}
	}
	if n := len(c.waiting); c.retired || n >= maxPending || n-c.live >= maxAbandoned {
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

// releaseID takes back an ID that was never written.
func (c *connection) releaseID(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.waiting[id]; p != nil && c.err == nil {
		delete(c.waiting, id)
		c.removeQuery()
	}
}

// removeQuery counts a live query less. The caller holds mu.
func (c *connection) removeQuery() {
	if c.live--; c.live == 0 {
		c.silence.Stop()
		c.rest.Reset(c.idle)
	}
}

// abandonQuery leaves a query without a caller. If the owner allows, its answer is
// still measured.
func (c *connection) abandonQuery(p *pendingQuery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || p.abandoned || len(p.answer) > 0 {
		return
	}
	p.abandoned = true
	p.counted = c.owner.BeginAbandoned()
	if p.counted {
		time.AfterFunc(c.owner.AbandonedLifetime(), func() { c.endAbandoned(p) })
	}
	// The silence timer runs on: that nobody waits any more does not end a silence.
	if c.live--; c.live == 0 && c.retired {
		c.rest.Reset(c.owner.AbandonedLifetime())
	} else if c.live == 0 {
		c.rest.Reset(c.idle)
	}
}

// endAbandoned tells the owner that an abandoned query has ended, with or without an
// answer. Only the first call for a query does anything.
func (c *connection) endAbandoned(p *pendingQuery) {
	c.mu.Lock()
	counted := p.counted
	p.counted = false
	c.mu.Unlock()
	if counted {
		c.owner.EndAbandoned()
	}
}

// readMessages takes the messages that the server sends, until the connection ends.
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

// deliverMessage hands a message to the query that it answers, or returns why there is none.
func (c *connection) deliverMessage(frame []byte) error {
	now := time.Now()
	id := binary.BigEndian.Uint16(frame)
	c.mu.Lock()
	p := c.waiting[id]
	if p == nil {
		c.mu.Unlock()
		return errForged
	}
	if err := p.q.Check(frame, id); err != nil {
		c.mu.Unlock()
		return err
	}
	delete(c.waiting, id)
	c.answers++
	c.carried.Store(now.UnixNano())
	p.answer <- frame
	if !p.abandoned {
		c.removeQuery()
	}
	c.probing = false
	if !p.probe {
		c.probes = 0
	}
	if c.live > 0 && !c.retired {
		// After each probe that was answered, the next one comes twice as late.
		c.silence.Reset(c.owner.StallTimeout() / 2 << min(c.probes, 8))
	} else {
		c.silence.Stop()
	}
	drained := c.retired && c.live == 0
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
	c.idle = min(d, maxIdle)
	if c.err == nil && c.live == 0 {
		c.rest.Reset(c.idle)
	}
}

// closeIfIdle closes the connection if no query uses it.
func (c *connection) closeIfIdle() {
	c.mu.Lock()
	busy := c.live > 0
	c.mu.Unlock()
	if !busy {
		c.failQueries(errIdle)
	}
}

// probeSilent is called when queries have waited for half of the stall timeout and nothing arrived. The server may only
// be slow, so a probe asks a question that every resolver can answer at once. If the probe is not answered in the other
// half, the connection is retired. A connection that must not be probed is retired as well.
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
	c.silence.Reset(c.owner.StallTimeout() / 2)
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

// endWriting ends a connection after a write error. If the server has closed the connection, it first reads the answers
// that were sent before.
func (c *connection) endWriting(err error) {
	if !isClosedByPeer(err) {
		c.failQueries(err)
		return
	}
	c.stopQueries()
	_ = c.conn.SetReadDeadline(time.Now().Add(lastRead))
}

// stopQueries makes the lane open another connection for the next query. This one is
// closed when the queries in flight have ended, each at the end of its context at
// the latest.
func (c *connection) stopQueries() {
	c.detachFromLane() // first, or a query that finds it retired would find it again
	c.mu.Lock()
	if c.err != nil || c.retired {
		c.mu.Unlock()
		return
	}
	c.retired = true
	drained := c.live == 0
	if c.silence != nil {
		c.silence.Stop()
	}
	c.rest.Stop()
	c.mu.Unlock()
	if drained {
		c.failQueries(errIdle)
	}
}

// detachFromLane takes the connection out of its lane.
func (c *connection) detachFromLane() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if c.lane.conn == c {
		c.lane.conn = nil
	}
}

// failQueries closes the connection, and ends the queries that wait with err.
func (c *connection) failQueries(err error) {
	c.detachFromLane()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err, c.crowded = err, len(c.waiting) > 1
	var abandoned []*pendingQuery
	for _, p := range c.waiting {
		c.probed = c.probed || isClosedByPeer(err) && isProbe(p.q)
		if p.counted {
			abandoned = append(abandoned, p)
		}
	}
	c.rest.Stop()
	if c.silence != nil {
		c.silence.Stop()
	}
	if c.probed {
		c.stream.probing.recordConnEnd()
	}
	close(c.dead)
	c.unwatch()
	answers, cut := c.answers, c.live > 0 && isClosedByPeer(err) && !c.probed
	c.mu.Unlock()
	c.lane.recordEnd(answers, cut)
	_ = c.conn.Close()
	for _, p := range abandoned {
		c.endAbandoned(p)
	}
}

// isClosedByPeer reports whether a connection that ended with err was closed by the server.
func isClosedByPeer(err error) bool {
	var t net.Error
	return err != errIdle && err != errFrame && err != ErrClosed && !(errors.As(err, &t) && t.Timeout())
}

// closeReason returns why the connection is dead, for a query that may have been sent.
func (c *connection) closeReason(sent bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &connectionError{c.err, sent, c.answers, c.crowded, c.probed}
}
