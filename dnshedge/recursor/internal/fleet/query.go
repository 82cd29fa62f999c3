package fleet

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	maxSockets    = 1024 // open at a time
	maxExpendable = 512  // of them with an expendable query; if there are more, a query that lost ends at once
)

// query is one message to one server, and the wait for its answer.
type query struct {
	// Set before it is started.
	*Fleet
	form
	matter
	server    *server
	addr      netip.AddrPort // the server's
	wire      *wire.Query
	inbox     *inbox // of the goroutine that asks
	began     time.Time
	late, rto time.Duration

	// Of the goroutine that asks.
	state     state
	delay     time.Duration // by which the process was late
	hedgeable bool          // no hedge was thought of yet

	// Written before the event that tells of it.
	sent  time.Time // when it had its places
	wrote time.Time // when it left this machine; zero: it has not
	msg   *dns.Msg
	err   error

	// Guarded by Fleet.mu.
	placed     bool          // it has the places that it needs
	expendable *list.Element // of sockets.expendable; nil: it is none of those
	conn       net.Conn
	cancel     context.CancelFunc // ends the opening of a connection
	stopped    bool
	lost       bool // nobody waits for it
	missed     bool // it counts as unanswered
}

// matter is what a query is about.
type matter struct {
	zone  *zone
	about topic
	rest  *rest     // of the zone, for such questions
	stand *standing // of the server, for them
}

// form is how a question is sent. A query that repeats another one has the same but for what was wrong.
type form struct {
	number int  // of the attempt
	hedge  bool // it was sent because an answer was late
	tcp    bool
	plain  bool // without EDNS
	paid   bool // by the budget of hedges
}

// state is how far a query is for the goroutine that asks.
type state int8

const (
	isWaiting state = iota // for places
	isSent                 // or about to be
	isEvicted              // its socket was needed for another; until it is overdue, it counts as sent
	isOverdue              // the retransmission timeout has passed
)

// due returns when something is to be done about q: the hedge or, after that, the next server.
func (q *query) due() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.late + q.delay)
	}
	return q.sent.Add(q.rto + q.delay)
}

// ends returns when q ends if it has lost.
func (q *query) ends() time.Time {
	if q.tcp {
		return q.sent.Add(tcpTime)
	}
	return q.sent.Add(answerTime)
}

// event is what happened to a query.
type event struct {
	*query
	ended bool // otherwise, it has been sent after a wait
}

// inbox is what a goroutine that asks is told. It is safe for concurrent use.
type inbox struct {
	wake chan struct{} // capacity 1: there are events

	mu     sync.Mutex // guards events; Fleet.mu is not locked while it is
	events []event
}

func (b *inbox) tell(e event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the events since the last call, of which the memory is used again.
func (b *inbox) take(last []event) []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = last[:0]
	return events
}

// sockets are places for queries at no server in particular. They are guarded by Fleet.mu.
type sockets struct {
	slots
	open       map[*query]struct{} // that have a place, and so may have a socket
	expendable list.List           // of them those that will hardly be answered, the oldest first; their sockets are taken first
}

// need is a place that a query needs, and how many there are of its kind.
type need struct {
	*slots
	max int32
}

func (q *query) needs() [3]need {
	return [...]need{{&q.zone.slots, q.perZone}, {&q.server.slots, q.perServer}, {&q.sockets.slots, maxSockets}}
}

// tryEnter takes the places that q needs, if they are all free. The caller holds mu.
func (q *query) tryEnter() bool {
	for _, p := range q.needs() {
		if p.used >= p.max {
			q.evict(p.slots)
		}
		if !p.free(p.max) {
			return false
		}
	}
	for _, p := range q.needs() {
		p.used++
	}
	q.settle()
	return true
}

// settle notes that q has places. The caller holds mu.
func (q *query) settle() {
	q.placed = true
	q.sent = time.Now()
	q.zone.users++
	q.sockets.open[q] = struct{}{}
}

// await waits for the places that q needs, one after the other. It reports false if nobody waits for
// q any more, as gone is closed, or its zone rests.
func (q *query) await(gone <-chan struct{}) bool {
	var has []need
	ok := true
	for _, s := range q.needs() {
		q.mu.Lock()
		if s.used >= s.max {
			q.evict(s.slots)
		}
		w := s.take(s.max)
		q.mu.Unlock()
		if w != nil {
			select {
			case <-w.ready:
			case <-gone:
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
	if !ok || q.closed || q.lost || q.rest.until > q.now() {
		for _, s := range has {
			s.leave()
		}
		return false
	}
	q.settle()
	return true
}

// release gives q's places back. Only the first call does anything. The caller holds mu.
func (q *query) release() {
	if !q.placed {
		return
	}
	q.placed = false
	if q.expendable != nil {
		q.sockets.expendable.Remove(q.expendable)
	}
	for _, p := range q.needs() {
		p.leave()
	}
	delete(q.sockets.open, q)
	q.zones.leave(q.zone, q.now())
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

// evict ends the oldest expendable query whose place is of use. For a place at a server or in a zone,
// that is one which was dropped. The caller holds mu.
func (f *Fleet) evict(s *slots) {
	for e := f.sockets.expendable.Front(); e != nil; e = e.Next() {
		q := e.Value.(*query)
		if s == &f.sockets.slots || (s == &q.server.slots || s == &q.zone.slots) && q.dropped() {
			q.release()
			q.stop()
			return
		}
	}
}

// demote makes q expendable: it ends when its socket is needed. The caller holds mu.
func (q *query) demote() {
	if !q.placed || q.expendable != nil {
		return
	}
	q.expendable = q.sockets.expendable.PushBack(q)
	if q.sockets.last != nil {
		q.evict(&q.sockets.slots)
	}
}

// overtaken reports whether q's server has answered a query that was sent after q. The caller holds mu.
func (q *query) overtaken() bool { return q.sentBefore(q.server.seen) }

// sentBefore reports whether q was sent before the query whose answer came from its server then. The caller holds mu.
func (q *query) sentBefore(seen time.Duration) bool {
	return seen-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// dropped reports whether q was dropped in all likelihood. The caller holds mu.
func (q *query) dropped() bool {
	passed := time.Since(q.sent)
	return passed >= answerTime || passed >= q.rto && q.overtaken()
}

// lose leaves q to itself: its answer, if one comes, tells how fast the server is. The caller holds mu.
func (q *query) lose() {
	q.lost = true
	if !q.placed {
		return
	}
	q.demote()
	if q.tcp || q.sockets.expendable.Len() > maxExpendable {
		q.release()
		q.stop()
		return
	}
	if q.missed && q.conn != nil {
		_ = q.conn.SetDeadline(q.ends()) // which it had not
	}
}

// miss counts q as unanswered, once. The caller holds mu.
func (q *query) miss() {
	if q.missed {
		return
	}
	q.missed = true
	now, known := q.now(), q.stand.known
	if !q.sentBefore(q.stand.seen) { // otherwise it is not silent
		q.stand.miss(now)
		if !q.overtaken() {
			q.stands.use(standingKey{q.addr, unknown}, now).missZone(now, q.about.zone())
			if known {
				q.server.missZone(now, q.about.zone())
			}
		}
	}
	if now >= q.zone.told {
		q.zone.told = now + tellEvery
		q.tell(false)
	}
	q.families[familyOf(q.addr)].miss(now, q.zone.name, known)
}

// answered takes what an answer to q took, and reports whether somebody waits for it.
func (q *query) answered() bool {
	now := time.Now()
	took := min(now.Sub(q.wrote), answerTime)
	at := now.Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	*q.rest = rest{}
	s, st := q.server, q.stand
	*st = standing{seen: at, asked: st.asked, known: true}
	q.stands.wake(q.addr)
	if q.tcp {
		s.silence = silence{}
	} else {
		if !s.met() {
			q.first.add(now, took)
		}
		s.learn(at, took, q.first.median)
		q.tell(true)
	}
	q.families[familyOf(q.addr)] = family{works: true}
	q.release()
	return !q.lost
}
