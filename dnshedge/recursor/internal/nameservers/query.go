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
	maxSockets    = 1024 // limit of open sockets
	maxExpendable = 512  // expendable queries above which a query stops with its task
)

// A query is one message to one server, and the wait for its answer.
type query struct {
	// Set before it is started.
	*Pool
	queryOptions
	queryZoneState
	server          *server
	addr            netip.AddrPort // address of server
	wire            *wire.Query
	inbox           *eventQueue // events for the queryLoop
	started         time.Time
	hedgeDelay, rto time.Duration

	// Only the goroutine of the queryLoop uses these fields.
	state        queryState
	processDelay time.Duration // added to the timers because they have fired too late
	hedgeable    bool          // whether a hedge may be sent; false once it was considered

	sent  time.Time // when it got its slots
	wrote time.Time // when it was sent; zero: not yet
	msg   *dns.Msg
	err   error

	hasSlots         bool
	expendable       *list.Element // its element in sockets.expendable; nil: not expendable
	conn             net.Conn
	cancel           context.CancelFunc // cancels opening a connection
	stopped          bool
	abandoned        bool // the task has ended
	countedAsTimeout bool // recordTimeout was called
}

// queryZoneState is the state of the zone that a query is about.
type queryZoneState struct {
	zone       *zoneState
	zoneQtype  zoneQtypeID
	backoff    *zoneBackoff      // of the zone, for this qtypeGroup
	zoneHealth *zoneServerHealth // of the server, for this zone and qtypeGroup
}

// queryOptions are the properties of a query. A repetition of the query has the same properties, except one.
type queryOptions struct {
	number       int  // Attempt.Attempt
	hedge        bool // sent because an earlier answer was late
	tcp          bool
	withoutEDNS  bool
	paidByBudget bool // the hedge budget has paid for it
}

// queryState is the progress of a query as known to the queryLoop.
type queryState int8

const (
	stateWaiting queryState = iota // waits for slots
	stateSent                      // has its slots: it was sent, or will be at once
	stateEvicted                   // stopped because another query needed its socket; counts as sent until its retransmission timeout
	stateOverdue                   // the retransmission timeout has passed
)

// nextTimer returns the time when an action for the unanswered q is due: its hedge, or its retransmission timeout
// once the hedge was considered.
func (q *query) nextTimer() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.hedgeDelay + q.processDelay)
	}
	return q.sent.Add(q.rto + q.processDelay)
}

// loserDeadline returns the time until which q waits for its answer after its task has ended.
func (q *query) loserDeadline() time.Time {
	if q.tcp {
		return q.sent.Add(tcpTimeout)
	}
	return q.sent.Add(answerTimeout)
}

// A queryEvent tells the queryLoop that a query has ended, or that it was sent after a wait for slots.
type queryEvent struct {
	*query
	ended bool // false: it was sent after a wait for slots
}

// An eventQueue passes the events of a task's queries to the queryLoop. It is safe for concurrent use.
type eventQueue struct {
	wake chan struct{} // has an element if there are events; capacity 1

	mu     sync.Mutex // guards events; Pool.mu is not locked while mu is
	events []queryEvent
}

// pushEvent adds an event and wakes the queryLoop.
func (b *eventQueue) pushEvent(e queryEvent) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// takeEvents removes all events and returns them. It reuses the memory of last for later events.
func (b *eventQueue) takeEvents(last []queryEvent) []queryEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = last[:0]
	return events
}

// A socketLimiter limits the number of open sockets. Pool.mu guards it.
type socketLimiter struct {
	slots
	open       map[*query]struct{} // queries with slots, and thus possibly with a socket
	expendable list.List           // *query values that are unlikely to be answered, oldest first; evicted when sockets are short
}

// A slotLimit is a semaphore with its number of slots.
type slotLimit struct {
	*slots
	max int32
}

// neededSlots returns the semaphores of the zone, the server and the sockets. A query needs a slot of each.
func (q *query) neededSlots() [3]slotLimit {
	return [...]slotLimit{{&q.zone.slots, q.maxPerZone}, {&q.server.slots, q.maxPerServer}, {&q.sockets.slots, maxSockets}}
}

// tryAcquireSlots acquires all slots that q needs and reports true, or acquires none and reports false. It first
// evicts an expendable query from each semaphore without free slots. The caller holds mu.
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
	q.recordSlots()
	return true
}

// recordSlots records that q has its slots, and that it is sent now. The caller holds mu.
func (q *query) recordSlots() {
	q.hasSlots = true
	q.sent = time.Now()
	q.zone.users++
	q.sockets.open[q] = struct{}{}
}

// awaitSlots waits for the slots that q needs, one after the other, and reports whether q has them. It reports false
// if taskDone is closed, the Pool is closed, the task has ended, or the zone is in backoff.
func (q *query) awaitSlots(taskDone <-chan struct{}) bool {
	var has []slotLimit
	ok := true
	for _, s := range q.neededSlots() {
		q.mu.Lock()
		if s.used >= s.max {
			q.evictQuery(s.slots)
		}
		w := s.acquireOrEnqueue(s.max)
		q.mu.Unlock()
		if w != nil {
			select {
			case <-w.ready:
			case <-taskDone:
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
	q.recordSlots()
	return true
}

// releaseSlots releases the slots of q, if it has them. The caller holds mu.
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

// stopExchange closes the connection of q, or cancels opening it. The caller holds mu.
func (q *query) stopExchange() {
	q.stopped = true
	if q.cancel != nil {
		q.cancel()
	}
	if q.conn != nil {
		_ = q.conn.Close()
	}
}

// evictQuery stops the oldest expendable query that has a slot of s. If s limits a server or a zone, it stops only a
// query that was probably lost. The caller holds mu.
func (f *Pool) evictQuery(s *slots) {
	for e := f.sockets.expendable.Front(); e != nil; e = e.Next() {
		q := e.Value.(*query)
		if s == &f.sockets.slots || (s == &q.server.slots || s == &q.zone.slots) && q.isDropped() {
			q.releaseSlots()
			q.stopExchange()
			return
		}
	}
}

// markExpendable lets other queries evict q when they need its socket. If a query waits for a socket already, it
// evicts an expendable query at once. The caller holds mu.
func (q *query) markExpendable() {
	if !q.hasSlots || q.expendable != nil {
		return
	}
	q.expendable = q.sockets.expendable.PushBack(q)
	if q.sockets.last != nil {
		q.evictQuery(&q.sockets.slots)
	}
}

// hasLaterAnswer reports whether the server has answered a query that was sent after q. The caller holds mu.
func (q *query) hasLaterAnswer() bool { return q.wasSentBefore(q.server.lastAnswer) }

// wasSentBefore reports whether q was sent before the query whose answer came at the given time. It estimates when
// that query was sent by the server's RTT. The caller holds mu.
func (q *query) wasSentBefore(answered time.Duration) bool {
	return answered-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// isDropped reports whether q was probably lost. That is so after answerTimeout, or after its retransmission timeout
// if the server has answered a later query. The caller holds mu.
func (q *query) isDropped() bool {
	passed := time.Since(q.sent)
	return passed >= answerTimeout || passed >= q.rto && q.hasLaterAnswer()
}

// abandonByTask records that the task of q has ended. A query over UDP continues, because a late answer still shows the
// RTT of the server. A query over TCP stops at once, and so does any query above maxExpendable. The caller holds mu.
func (q *query) abandonByTask() {
	q.abandoned = true
	if !q.hasSlots {
		return
	}
	q.markExpendable()
	if q.tcp || q.sockets.expendable.Len() > maxExpendable {
		q.releaseSlots()
		q.stopExchange()
		return
	}
	if q.countedAsTimeout && q.conn != nil {
		_ = q.conn.SetDeadline(q.loserDeadline()) // extendWait has removed it
	}
}

// recordTimeout counts q as unanswered, in the health of its server, zone and address family. Further calls have no
// effect. The caller holds mu.
func (q *query) recordTimeout() {
	if q.countedAsTimeout {
		return
	}
	q.countedAsTimeout = true
	now, hasAnsweredZone := q.elapsed(), q.zoneHealth.hasAnswered
	if !q.wasSentBefore(q.zoneHealth.lastAnswer) { // otherwise the server has answered since
		q.zoneHealth.recordUnansweredQuery(now)
		if !q.hasLaterAnswer() {
			q.healthByZone.getOrCreateHealth(healthKey{q.addr, unansweredZones}, now).recordUnansweredZone(now, q.zoneQtype.zoneHash())
			if hasAnsweredZone {
				q.server.recordUnansweredZone(now, q.zoneQtype.zoneHash())
			}
		}
	}
	if now >= q.zone.outageReported {
		q.zone.outageReported = now + outageInterval
		q.recordForOutage(false)
	}
	q.families[familyIndex(q.addr)].recordUnansweredZone(now, q.zone.name, hasAnsweredZone)
}

// recordAnswer records that the server has answered q and how long that took. It releases the slots of q, and
// reports whether the task still needs the answer.
func (q *query) recordAnswer() bool {
	now := time.Now()
	took := min(now.Sub(q.wrote), answerTimeout)
	at := now.Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	*q.backoff = zoneBackoff{}
	s, st := q.server, q.zoneHealth
	*st = zoneServerHealth{lastAnswer: at, lastQuery: st.lastQuery, hasAnswered: true}
	q.healthByZone.removeUnansweredZones(q.addr)
	if q.tcp {
		s.backoffState = backoffState{}
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
