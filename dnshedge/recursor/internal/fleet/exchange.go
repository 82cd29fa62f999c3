package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	tcpTime  = 4 * time.Second // of a query over TCP, with its connection
	dialTime = 2 * time.Second // of the connection

	maxWrong = 3 // messages that answer no query, before a socket is given up
)

var (
	// errCut is why a query is sent again over TCP: the answer did not fit a datagram.
	errCut = errors.New("recursor: answer was cut")
	// errShort is why a response is not taken: not even a connection brought it whole.
	errShort = errors.New("recursor: answer over TCP was cut")
	// errAgain is why a query is sent again without EDNS: the server did not understand that.
	errAgain = errors.New("recursor: server does not understand EDNS")
	// errEvicted is why a query has ended without an answer: others need its socket.
	errEvicted = errors.New("recursor: socket was needed for another query")
	// errForgers is why a query is given up: somebody guesses IDs.
	errForgers = errors.New("recursor: too many messages that answer no query")
)

// query is one message to one server, and the wait for its answer.
type query struct {
	*Fleet
	asking *asking
	zone   *zone
	server *server
	addr   netip.AddrPort // the server's
	wire   *wire.Query
	number int // of the attempt
	hedge  bool
	tcp    bool
	plain  bool // without EDNS
	line   bool // it has to wait for a place before it is sent
	began  time.Time

	// Of the goroutine that asks.
	late, rto time.Duration
	delay     time.Duration // by which the process was late
	hedgeable bool          // no hedge was thought of yet
	overdue   bool          // the retransmission timeout has passed
	evicted   bool          // its socket was needed for others
	entered   bool          // it has been sent, or is about to be

	// Written before the event that tells of it.
	sent  time.Time // when it had its places
	wrote time.Time // when it left this machine; zero: it has not
	msg   *dns.Msg
	err   error

	// Guarded by fleet.mu.
	placed     bool // it has places
	conn       net.Conn
	cancel     context.CancelFunc // ends the opening of a connection
	stopped    bool
	lost       bool // nobody waits for it
	missed     bool // it counts as unanswered
	queued     bool // it is in fleet.loose
	prev, next *query
}

// due returns when something is to be done about q: the hedge or, after that, the next server.
func (q *query) due() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.late + q.delay)
	}
	return q.sent.Add(q.rto + q.delay)
}

func (q *query) info() Attempt {
	return Attempt{
		Name: q.asking.Name, Type: q.asking.Type, Zone: q.zone.name, Server: q.addr,
		TCP: q.tcp, Attempt: q.number, Hedge: q.hedge,
	}
}

// places are those that q needs, and how many there are of each kind.
func (q *query) places() [3]places {
	return [...]places{{&q.zone.slots, q.perZone}, {&q.server.slots, q.perServer}, {&q.sockets, maxSockets}}
}

type places struct {
	*slots
	max int32
}

// tryEnter takes the places that q needs, if they are all free. The caller holds mu.
func (q *query) tryEnter() bool {
	for _, p := range q.places() {
		if p.used >= p.max {
			q.evict(p.slots)
		}
		if !p.free(p.max) {
			return false
		}
	}
	for _, p := range q.places() {
		p.used++
	}
	q.place()
	q.entered = true
	return true
}

// place notes that q has places. The caller holds mu.
func (q *query) place() {
	q.placed = true
	q.sent = time.Now()
	q.zone.users++
	q.open[q] = struct{}{}
}

// enter waits for the places that q needs, one after the other. It reports false if nobody
// waits for q any more, or its zone rests.
func (q *query) enter() bool {
	var has []places
	ok := true
	for _, s := range q.places() {
		q.mu.Lock()
		if s.used >= s.max {
			q.evict(s.slots)
		}
		w := s.take(s.max)
		q.mu.Unlock()
		if w != nil {
			select {
			case <-w.ready:
			case <-q.asking.gone:
				ok = false
			case <-q.ctx.Done():
				ok = false
			}
			if !ok {
				q.mu.Lock()
				s.giveUp(w)
				q.mu.Unlock()
				break
			}
		}
		has = append(has, s)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !ok || q.closed || q.lost || q.zone.until > q.now() {
		for _, s := range has {
			s.leave()
		}
		return false
	}
	q.place()
	return true
}

// release gives q's places back. Only the first call does anything. The caller holds mu.
func (q *query) release() {
	q.loose.remove(q)
	if !q.placed {
		return
	}
	q.placed = false
	q.zone.slots.leave()
	q.server.slots.leave()
	q.sockets.leave()
	delete(q.open, q)
	q.leaveZone(q.zone, q.now())
}

// stop ends q soon. The caller holds mu.
func (q *query) stop() {
	q.stopped = true
	if q.cancel != nil {
		q.cancel()
	}
	if q.conn != nil {
		_ = q.conn.Close()
	}
}

// evict ends the oldest query of which little is hoped, if it helps to have a place of those. For a place at a
// server or in a zone, that is one without any hope. The caller holds mu.
func (f *Fleet) evict(s *slots) {
	for q := f.loose.first; q != nil; q = q.next {
		if s == &f.sockets || (s == &q.server.slots || s == &q.zone.slots) && q.hopeless() {
			q.release()
			q.stop()
			return
		}
	}
}

// loosen notes that little is hoped of q: it ends when its socket is needed. The caller holds mu.
func (f *Fleet) loosen(q *query) {
	if !q.placed || q.queued {
		return
	}
	f.loose.push(q)
	if f.sockets.last != nil {
		f.evict(&f.sockets)
	}
}

// overtaken reports whether q's server has answered a query that was sent after q. The caller holds mu.
func (q *query) overtaken() bool {
	return q.server.seen-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// hopeless reports whether q was dropped in all likelihood. The caller holds mu.
func (q *query) hopeless() bool { return time.Since(q.sent) >= q.rto && q.overtaken() }

// lose leaves q to itself: its answer, if one comes, tells how fast the server is. The caller holds mu.
func (f *Fleet) lose(q *query) {
	q.lost = true
	if !q.placed {
		return
	}
	f.loosen(q)
	if q.tcp || f.loose.n > maxLoose {
		q.release()
		q.stop()
	}
}

// miss counts q as unanswered, once. The caller holds mu.
func (f *Fleet) miss(q *query) {
	if q.missed {
		return
	}
	q.missed = true
	now := f.now()
	if !q.overtaken() { // otherwise it is not silent
		q.server.miss(now)
	}
	f.tell(false)
	y := &f.families[familyOf(q.addr)]
	if y.silent++; y.silent >= familySilence && now >= y.until {
		y.until = now + familyRest
	}
}

// answered takes what an answer to q took, and reports whether somebody waits for it.
func (f *Fleet) answered(q *query) bool {
	now := time.Now()
	took := min(now.Sub(q.wrote), answerTime)
	at := now.Sub(f.epoch)
	f.mu.Lock()
	defer f.mu.Unlock()
	s := q.server
	if q.tcp {
		s.silent, s.rests, s.until = 0, 0, 0
	} else {
		if !s.met() {
			f.first.add(now, took, f.percentile)
		}
		s.learn(at, took, f.first.median)
		f.tell(true)
	}
	f.families[familyOf(q.addr)] = family{}
	q.release()
	return !q.lost
}

// run sends q and waits for its answer.
func (q *query) run() {
	defer q.wg.Done()
	if q.line {
		if !q.enter() {
			q.err = ErrNoServers
			q.asking.tell(event{q, true})
			return
		}
		q.asking.tell(event{q, false})
	}
	msg, err := q.exchange()
	if err != nil && err != errCut {
		q.mu.Lock()
		if q.stopped {
			err = errEvicted
		} else if !q.tcp && err != errForgers && (!q.wrote.IsZero() || unreachable(err)) {
			q.miss(q)
		}
		q.release()
		q.mu.Unlock()
	}
	q.msg, q.err = msg, err
	q.asking.tell(event{q, true})
}

var buffers = sync.Pool{New: func() any { return new([transport.MaxDatagram]byte) }}

// exchange returns the response, or nothing if nobody waits for it.
func (q *query) exchange() (*dns.Msg, error) {
	q.counts.wire.Add(1)
	if q.tcp {
		q.counts.tcp.Add(1)
		return q.stream()
	}
	return q.datagram()
}

// datagram asks over UDP, from a socket and so a port of its own.
func (q *query) datagram() (*dns.Msg, error) {
	conn, err := q.dial()
	if crowded(err) {
		q.mu.Lock()
		q.evict(&q.sockets)
		q.mu.Unlock()
		conn, err = q.dial()
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := q.hold(conn, min(q.rto, answerTime)); err != nil {
		return nil, err
	}
	buf := buffers.Get().(*[transport.MaxDatagram]byte)
	defer buffers.Put(buf)
	id := wire.RandomID()
	out := q.wire.Append(buf[:0], id, wire.Shape{Size: wire.DefaultUDPSize})
	q.wrote = time.Now()
	if _, err := conn.Write(out); err != nil {
		return nil, err
	}
	for wrong := 0; ; {
		n, err := transport.Receive(conn, buf[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && q.waitOn() {
			continue
		}
		if err != nil {
			return nil, err
		}
		b := buf[:n]
		if q.wire.Check(b, id) == nil {
			return q.take(b)
		}
		q.counts.ignored.Add(1)
		if wrong++; wrong >= maxWrong {
			return nil, errForgers
		}
	}
}

// dial opens a socket.
func (q *query) dial() (net.Conn, error) {
	if q.dialer != nil {
		return q.dialWith(q.dialer, "udp", answerTime)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(q.addr))
	if err != nil {
		return nil, err // and not a *net.UDPConn that is nil
	}
	return c, nil
}

// dialWith opens a connection, which takes a while at most, and ends when q is stopped.
func (q *query) dialWith(d Dialer, network string, most time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(q.ctx, most)
	defer cancel()
	q.mu.Lock()
	q.cancel = cancel
	stopped := q.stopped
	q.mu.Unlock()
	if stopped {
		return nil, net.ErrClosed
	}
	return d.DialContext(ctx, network, q.addr.String())
}

// crowded reports whether there was no socket because there are too many.
func crowded(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// unreachable reports whether a server cannot be reached from here.
func unreachable(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// hold makes conn the one that ends when q does, or after the given time since it was sent.
func (q *query) hold(conn net.Conn, d time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return net.ErrClosed
	}
	q.conn = conn
	return conn.SetDeadline(q.sent.Add(d))
}

// waitOn counts q as unanswered when its timeout has passed, and reports whether its answer is
// still awaited: then it has more time.
func (q *query) waitOn() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.missed || q.stopped {
		return false
	}
	q.miss(q)
	return q.conn.SetDeadline(q.sent.Add(answerTime)) == nil
}

// take reads a response if somebody waits for it.
func (q *query) take(b []byte) (*dns.Msg, error) {
	if !q.answered(q) {
		return nil, nil
	}
	if cut := b[2]&2 != 0; cut && q.tcp {
		return nil, errShort
	} else if cut {
		return nil, errCut
	}
	return wire.ParseMsg(b)
}

// stream asks over TCP, over a connection of its own.
func (q *query) stream() (*dns.Msg, error) {
	d := q.dialer
	if d == nil {
		d = new(net.Dialer)
	}
	conn, err := q.dialWith(d, "tcp", dialTime)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := q.hold(conn, tcpTime); err != nil {
		return nil, err
	}
	id := wire.RandomID()
	b := q.wire.Append(make([]byte, 2, 512), id, wire.Shape{Size: wire.DefaultUDPSize})
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	q.wrote = time.Now()
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, b[:2]); err != nil {
		return nil, err
	}
	b = make([]byte, binary.BigEndian.Uint16(b))
	if _, err := io.ReadFull(conn, b); err != nil {
		return nil, err
	}
	if err := q.wire.Check(b, id); err != nil {
		q.counts.ignored.Add(1)
		return nil, err
	}
	return q.take(b)
}
