package nameservers

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
	*Pool
	queryForm
	queryTopic
	server          *server
	addr            netip.AddrPort // the server's
	wire            *wire.Query
	inbox           *eventQueue // of the goroutine that asks
	started         time.Time
	hedgeDelay, rto time.Duration

	// Of the goroutine that asks.
	state        queryState
	processDelay time.Duration // by which the process was late
	hedgeable    bool          // no hedge was thought of yet

	// Written before the event that tells of it.
	sent  time.Time // when it had its places
	wrote time.Time // when it left this machine; zero: it has not
	msg   *dns.Msg
	err   error

	// Guarded by Fleet.mu.
	hasSlots        bool          // it has the places that it needs
	expendable      *list.Element // of sockets.expendable; nil: it is none of those
	conn            net.Conn
	cancel          context.CancelFunc // ends the opening of a connection
	stopped         bool
	abandoned       bool // nobody waits for it
	countedAsMissed bool // it counts as unanswered
}

// queryTopic is what a query is about.
type queryTopic struct {
	zone       *zoneState
	topic      topicID
	backoff    *zoneBackoff      // of the zone, for such questions
	zoneHealth *zoneServerHealth // of the server, for them
}

// queryForm is how a question is sent. A query that repeats another one has the same but for what was wrong.
type queryForm struct {
	number       int  // of the attempt
	hedge        bool // it was sent because an answer was late
	tcp          bool
	withoutEDNS  bool // without EDNS
	paidByBudget bool // by the budget of hedges
}

// queryState is how far a query is for the goroutine that asks.
type queryState int8

const (
	stateWaiting queryState = iota // for places
	stateSent                      // or about to be
	stateEvicted                   // its socket was needed for another; until it is overdue, it counts as sent
	stateOverdue                   // the retransmission timeout has passed
)

// nextTimer returns when something is to be done about q: the hedge or, after that, the next server.
func (q *query) nextTimer() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.hedgeDelay + q.processDelay)
	}
	return q.sent.Add(q.rto + q.processDelay)
}

// loserDeadline returns when q ends if it has lost.
func (q *query) loserDeadline() time.Time {
	if q.tcp {
		return q.sent.Add(tcpTimeout)
	}
	return q.sent.Add(answerTimeout)
}

// queryEvent is what happened to a query.
type queryEvent struct {
	*query
	ended bool // otherwise, it has been sent after a wait
}

// eventQueue is what a goroutine that asks is told. It is safe for concurrent use.
type eventQueue struct {
	wake chan struct{} // capacity 1: there are events

	mu     sync.Mutex // guards events; Fleet.mu is not locked while it is
	events []queryEvent
}

func (b *eventQueue) pushEvent(e queryEvent) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the events since the last call, of which the memory is used again.
func (b *eventQueue) takeEvents(last []queryEvent) []queryEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = last[:0]
	return events
}

// socketTable are places for queries at no server in particular. They are guarded by Fleet.mu.
type socketTable struct {
	slots
	open       map[*query]struct{} // that have a place, and so may have a socket
	expendable list.List           // of them those that will hardly be answered, the oldest first; their sockets are taken first
}

// need is a place that a query needs, and how many there are of its kind.
type slotNeed struct {
	*slots
	max int32
}

func (q *query) neededSlots() [3]slotNeed {
	return [...]slotNeed{{&q.zone.slots, q.perZone}, {&q.server.slots, q.perServer}, {&q.sockets.slots, maxSockets}}
}

// tryAcquireSlots takes the places that q needs, if they are all free. The caller holds mu.
func (q *query) tryAcquireSlots() bool {
	for _, p := range q.neededSlots() {
		if p.used >= p.max {
			q.evictQuery(p.slots)
		}
		if !p.isFree(p.max) {
			return false
		}
	}
	for _, p := range q.neededSlots() {
		p.used++
	}
	q.recordPlacement()
	return true
}

// recordPlacement notes that q has places. The caller holds mu.
func (q *query) recordPlacement() {
	q.hasSlots = true
	q.sent = time.Now()
	q.zone.users++
	q.sockets.open[q] = struct{}{}
}

// await waits for the places that q needs, one after the other. It reports false if nobody waits for
// q any more, as gone is closed, or its zone rests.
func (q *query) awaitSlots(gone <-chan struct{}) bool {
	var has []slotNeed
	ok := true
	for _, s := range q.neededSlots() {
		q.mu.Lock()
		if s.used >= s.max {
			q.evictQuery(s.slots)
		}
		w := s.acquireOrWait(s.max)
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
				s.cancelWait(w)
				q.mu.Unlock()
				break
			}
		}
		has = append(has, s)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !ok || q.closed || q.abandoned || q.backoff.avoidUntil > q.elapsed() {
		for _, s := range has {
			s.releaseSlot()
		}
		return false
	}
	q.recordPlacement()
	return true
}

// releaseSlots gives q's places back. Only the first call does anything. The caller holds mu.
func (q *query) releaseSlots() {
	if !q.hasSlots {
		return
	}
	q.hasSlots = false
	if q.expendable != nil {
		q.sockets.expendable.Remove(q.expendable)
	}
	for _, p := range q.neededSlots() {
		p.releaseSlot()
	}
	delete(q.sockets.open, q)
	q.zones.releaseZone(q.zone, q.elapsed())
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

// evictQuery ends the oldest expendable query whose place is of use. For a place at a server or in a zone,
// that is one which was dropped. The caller holds mu.
func (f *Pool) evictQuery(s *slots) {
	for e := f.sockets.expendable.Front(); e != nil; e = e.Next() {
		q := e.Value.(*query)
		if s == &f.sockets.slots || (s == &q.server.slots || s == &q.zone.slots) && q.isDropped() {
			q.releaseSlots()
			q.stop()
			return
		}
	}
}

// markExpendable makes q expendable: it ends when its socket is needed. The caller holds mu.
func (q *query) markExpendable() {
	if !q.hasSlots || q.expendable != nil {
		return
	}
	q.expendable = q.sockets.expendable.PushBack(q)
	if q.sockets.last != nil {
		q.evictQuery(&q.sockets.slots)
	}
}

// isOvertaken reports whether q's server has answered a query that was sent after q. The caller holds mu.
func (q *query) isOvertaken() bool { return q.wasSentBefore(q.server.lastAnswer) }

// wasSentBefore reports whether q was sent before the query whose answer came from its server then. The caller holds mu.
func (q *query) wasSentBefore(seen time.Duration) bool {
	return seen-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// isDropped reports whether q was dropped in all likelihood. The caller holds mu.
func (q *query) isDropped() bool {
	passed := time.Since(q.sent)
	return passed >= answerTimeout || passed >= q.rto && q.isOvertaken()
}

// abandonQuery leaves q to itself: its answer, if one comes, tells how fast the server is. The caller holds mu.
func (q *query) abandonQuery() {
	q.abandoned = true
	if !q.hasSlots {
		return
	}
	q.markExpendable()
	if q.tcp || q.sockets.expendable.Len() > maxExpendable {
		q.releaseSlots()
		q.stop()
		return
	}
	if q.countedAsMissed && q.conn != nil {
		_ = q.conn.SetDeadline(q.loserDeadline()) // which it had not
	}
}

// recordMiss counts q as unanswered, once. The caller holds mu.
func (q *query) recordMiss() {
	if q.countedAsMissed {
		return
	}
	q.countedAsMissed = true
	now, known := q.elapsed(), q.zoneHealth.hasAnswered
	if !q.wasSentBefore(q.zoneHealth.lastAnswer) { // otherwise it is not silent
		q.zoneHealth.recordMiss(now)
		if !q.isOvertaken() {
			q.healthByZone.useHealth(healthKey{q.addr, otherZones}, now).recordMissedZone(now, q.topic.zoneID())
			if known {
				q.server.recordMissedZone(now, q.topic.zoneID())
			}
		}
	}
	if now >= q.zone.outageReported {
		q.zone.outageReported = now + outageInterval
		q.recordForOutage(false)
	}
	q.families[familyIndex(q.addr)].recordMiss(now, q.zone.name, known)
}

// recordAnswer takes what an answer to q took, and reports whether somebody waits for it.
func (q *query) recordAnswer() bool {
	now := time.Now()
	took := min(now.Sub(q.wrote), answerTimeout)
	at := now.Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	*q.backoff = zoneBackoff{}
	s, st := q.server, q.zoneHealth
	*st = zoneServerHealth{lastAnswer: at, lastQuery: st.lastQuery, hasAnswered: true}
	q.healthByZone.clearOtherZones(q.addr)
	if q.tcp {
		s.silence = silence{}
	} else {
		if !s.hasAnswered() {
			q.firstRTTs.addSample(now, took)
		}
		s.recordRTT(at, took, q.firstRTTs.median)
		q.recordForOutage(true)
	}
	q.families[familyIndex(q.addr)] = familyHealth{hasAnswered: true}
	q.releaseSlots()
	return !q.abandoned
}
