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

// connError is a failure of a connection, and says nothing about the server.
type connError struct {
	err     error
	sent    bool // the server may have received the query
	answers int  // that came over the connection before
	others  bool // queries were under way besides, when it ended
	probed  bool // one of those that were under way was a probe, and the server has ended it
}

func (e *connError) Error() string { return e.err.Error() }
func (e *connError) Unwrap() error { return e.err }

// EndedByQuery reports whether an error says that the server has ended a connection after it may have got a query over it: then the query may
// be the reason.
func EndedByQuery(err error) bool {
	var broken *connError
	var ended *endedError
	return Ended(err) && (errors.As(err, &broken) || errors.As(err, &ended))
}

// An endedError is why a request has failed whose connection the server has ended.
type endedError struct{ err error }

func (e *endedError) Error() string        { return e.err.Error() }
func (e *endedError) Unwrap() error        { return e.err }
func (e *endedError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// connection is one connection of a stream. It ends by fail, for whatever reason.
type connection struct {
	stream *stream
	owner  Owner // the stream's
	lane   *lane
	conn   net.Conn
	tcp    net.Conn      // below TLS, or conn
	write  chan struct{} // capacity 1: full while somebody writes
	dead   chan struct{} // closed when the connection is

	carried atomic.Int64 // when the last answer came, Unix ns; 0: none has

	mu      sync.Mutex // guards the fields below
	err     error      // why the connection is dead
	crowded bool       // more than one query waited then
	probed  bool       // a probe did, and the server has ended it
	waiting map[uint16]*pending
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

// pending is a query in flight. It stays in waiting when it is abandoned, so that
// its ID is not given to another (RFC 7766 §6.2.1).
type pending struct {
	q         *wire.Query
	sent      time.Time
	answer    chan []byte // capacity 1, so that the reader never waits
	abandoned bool        // guarded by connection.mu
	probe     bool        // no caller waits or ever did
	counted   bool        // the owner counts it as abandoned; guarded by connection.mu
}

func newConnection(s *stream, l *lane, conn net.Conn) *connection {
	c := &connection{
		stream: s, owner: s.Owner, lane: l, conn: conn, tcp: conn,
		write: make(chan struct{}, 1), dead: make(chan struct{}), waiting: make(map[uint16]*pending),
		idle: idleTime,
	}
	if t, ok := conn.(*tls.Conn); ok {
		c.tcp = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = time.AfterFunc(c.idle, c.rested)
	c.unwatch = context.AfterFunc(s.ctx, func() { c.fail(ErrClosed) })
	return c
}

// exchange sends q and returns the message that answers it.
func (c *connection) exchange(ctx context.Context, q *wire.Query) ([]byte, error) {
	p := &pending{q: q, answer: make(chan []byte, 1)}
	id, queries, err := c.register(p)
	if errors.Is(err, errRetired) {
		c.retire()
	}
	if err != nil {
		return nil, err
	}
	if c.lane.full(queries) {
		c.retire()
	}
	select {
	case c.write <- struct{}{}:
	case <-c.dead:
		return nil, c.reason(false)
	case <-ctx.Done():
		c.forget(id)
		return nil, causeOf(ctx)
	}
	err = c.send(q, id)
	<-c.write
	if err != nil {
		c.end(err)
	}
	select {
	case b := <-p.answer:
		return b, nil
	case <-ctx.Done():
		c.abandon(p)
		return nil, causeOf(ctx)
	case <-c.dead:
		select {
		case b := <-p.answer:
			return b, nil
		default:
			return nil, c.reason(true)
		}
	}
}

// send writes a query. The caller holds write.
func (c *connection) send(q *wire.Query, id uint16) error {
	frame := make([]byte, 2, 512)
	frame = q.Append(frame, id, wire.Shape{Size: c.stream.Size, Keepalive: true, Pad: c.stream.security != nil})
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	// A connection whose peer does not read is treated as dead.
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.owner.StallTimeout()))
	c.owner.RecordQuery()
	_, err := c.conn.Write(frame)
	return err
}

// register finds an ID for a query that is about to be written, and returns how many
// the connection has got by now.
func (c *connection) register(p *pending) (id uint16, queries int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, err = c.assign(p); err != nil {
		return 0, 0, err
	}
	c.live++
	c.queries++
	c.rest.Stop()
	if c.silence == nil {
		c.silence = time.AfterFunc(c.owner.StallTimeout()/2, c.silent)
	} else if c.live == 1 && !c.probing {
		c.silence.Reset(c.owner.StallTimeout() / 2)
	}
	return id, c.queries, nil
}

// assign finds an ID for a query, or returns errRetired if the connection takes no
// more, or must not from now on. The caller holds mu.
func (c *connection) assign(p *pending) (id uint16, err error) {
	if c.err != nil {
		return 0, &connError{c.err, false, c.answers, c.crowded, c.probed}
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

// forget takes back an ID that was never written.
func (c *connection) forget(id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.waiting[id]; p != nil && c.err == nil {
		delete(c.waiting, id)
		c.leave()
	}
}

// leave counts a live query less. The caller holds mu.
func (c *connection) leave() {
	if c.live--; c.live == 0 {
		c.silence.Stop()
		c.rest.Reset(c.idle)
	}
}

// abandon leaves a query without a caller. If the owner allows, its answer is
// still measured.
func (c *connection) abandon(p *pending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || p.abandoned || len(p.answer) > 0 {
		return
	}
	p.abandoned = true
	p.counted = c.owner.BeginAbandoned()
	if p.counted {
		time.AfterFunc(c.owner.AbandonedLifetime(), func() { c.settle(p) })
	}
	// The silence timer runs on: that nobody waits any more does not end a silence.
	if c.live--; c.live == 0 && c.retired {
		c.rest.Reset(c.owner.AbandonedLifetime())
	} else if c.live == 0 {
		c.rest.Reset(c.idle)
	}
}

// settle tells the owner that an abandoned query has ended, with or without an
// answer. Only the first call for a query does anything.
func (c *connection) settle(p *pending) {
	c.mu.Lock()
	counted := p.counted
	p.counted = false
	c.mu.Unlock()
	if counted {
		c.owner.EndAbandoned()
	}
}

// read takes the messages that the server sends, until the connection ends.
func (c *connection) read() {
	defer c.fail(errFrame) // unless it has failed, if Read ends the goroutine
	in := bufio.NewReaderSize(c.conn, 4096)
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			c.fail(err)
			return
		}
		n := int(binary.BigEndian.Uint16(head[:]))
		if n < wire.HeaderLen {
			c.owner.RecordIgnored(errFrame)
			c.fail(errFrame)
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(in, frame); err != nil {
			c.fail(err)
			return
		}
		if err := c.deliver(frame); err != nil {
			c.owner.RecordIgnored(err)
		}
	}
}

// deliver hands a message to the query that it answers, or returns why there is none.
func (c *connection) deliver(frame []byte) error {
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
		c.leave()
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
	c.settle(p)
	c.owner.RecordAnswer(now.Sub(p.sent), pathTime(c.tcp))
	if drained {
		c.fail(errIdle)
	}
	return nil
}

// keepalive does what the server says about how long the connection may be idle. 0
// means that it is to be closed as soon as no query waits (RFC 7828 §3.4).
func (c *connection) keepalive(d time.Duration) {
	if d == 0 {
		c.retire()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = min(d, maxIdle)
	if c.err == nil && c.live == 0 {
		c.rest.Reset(c.idle)
	}
}

// rested closes the connection if no query uses it.
func (c *connection) rested() {
	c.mu.Lock()
	busy := c.live > 0
	c.mu.Unlock()
	if !busy {
		c.fail(errIdle)
	}
}

// silent is called when queries have waited for half of the owner's patience and
// nothing arrived. What the server looks for may take its time; whether the
// connection is alive shows a question whose answer every resolver has at hand. If
// that is not answered in the other half, the connection is retired; so is one over which none may be asked.
func (c *connection) silent() {
	c.mu.Lock()
	if c.err != nil || c.retired {
		c.mu.Unlock()
		return
	}
	if c.probing {
		c.mu.Unlock()
		c.retire()
		return
	}
	c.probing = true
	c.probes++
	c.silence.Reset(c.owner.StallTimeout() / 2)
	if c.stream.probing.ends() {
		c.mu.Unlock()
		return
	}
	id, err := c.assign(&pending{q: wire.RootServers, answer: make(chan []byte, 1), abandoned: true, probe: true})
	c.mu.Unlock()
	if err != nil {
		return
	}
	select {
	case c.write <- struct{}{}:
		err = c.send(wire.RootServers, id)
		<-c.write
	case <-c.dead:
	}
	if err != nil {
		c.end(err)
	}
}

// end ends a connection that could not be written to. If the server has closed it, what it
// has sent before is read first: there may be answers.
func (c *connection) end(err error) {
	if !byPeer(err) {
		c.fail(err)
		return
	}
	c.retire()
	_ = c.conn.SetReadDeadline(time.Now().Add(lastRead))
}

// retire makes the lane open another connection for the next query. This one is
// closed when the queries in flight have ended, each at the end of its context at
// the latest.
func (c *connection) retire() {
	c.detach() // first, or a query that finds it retired would find it again
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
		c.fail(errIdle)
	}
}

// detach takes the connection out of its lane.
func (c *connection) detach() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if c.lane.conn == c {
		c.lane.conn = nil
	}
}

// fail closes the connection, and ends the queries that wait with err.
func (c *connection) fail(err error) {
	c.detach()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err, c.crowded = err, len(c.waiting) > 1
	var abandoned []*pending
	for _, p := range c.waiting {
		c.probed = c.probed || byPeer(err) && isProbe(p.q)
		if p.counted {
			abandoned = append(abandoned, p)
		}
	}
	c.rest.Stop()
	if c.silence != nil {
		c.silence.Stop()
	}
	if c.probed {
		c.stream.probing.end()
	}
	close(c.dead)
	c.unwatch()
	answers, cut := c.answers, c.live > 0 && byPeer(err) && !c.probed
	c.mu.Unlock()
	c.lane.ended(answers, cut)
	_ = c.conn.Close()
	for _, p := range abandoned {
		c.settle(p)
	}
}

// byPeer reports whether a connection that ended with err was closed by the server.
func byPeer(err error) bool {
	var t net.Error
	return err != errIdle && err != errFrame && err != ErrClosed && !(errors.As(err, &t) && t.Timeout())
}

// reason returns why the connection is dead, for a query that may have been sent.
func (c *connection) reason(sent bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &connError{c.err, sent, c.answers, c.crowded, c.probed}
}
