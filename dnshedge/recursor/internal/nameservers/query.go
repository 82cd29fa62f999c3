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
	maxSockets   = 1024 // maximum number of open sockets
	maxEvictable = 512  // number of evictable queries above which a query stops with its Task
)

// A query is one message to one server, and the wait for its answer. The goroutine of the queryLoop creates it, and a
// goroutine of its own sends it. It may outlive the Task that needs the answer. The embedded structs say which
// goroutine may use which fields.
type query struct {
	*Pool
	querySetup
	queryProgress
	queryResult
	sharedQueryState
}

// A querySetup has the fields of a query that are set before the query is started. Nothing changes them afterwards.
type querySetup struct {
	queryOptions
	zone       *zoneState
	zoneQtype  zoneQtypeID
	backoff    *zoneBackoff      // backoff of the zone for the qtypeGroup of the query
	zoneHealth *zoneServerHealth // health of the server for this zone and qtypeGroup
	candidate  int               // index of the server in queryLoop.candidates
	server     *server
	addr       netip.AddrPort // address of server
	wire       *wire.Query    // message to send
	inbox      *eventQueue    // receives the events of the query
	startedAt  time.Time

	hedgeDelay time.Duration // time after which a hedge is due, since sharedQueryState.sent
	rto        time.Duration // retransmission timeout, since sharedQueryState.sent
}

// A queryProgress holds the fields of a query with which its queryLoop decides about the next action. Only the
// goroutine of the queryLoop uses it.
type queryProgress struct {
	state        queryState
	processDelay time.Duration // correction of the timers for the time in which this process was too busy to read the answer
	hedgeable    bool          // a hedge may be sent when hedgeDelay has passed; false once the hedge was considered
}

// A queryResult holds the response or the error of a query. Only the goroutine of the query may use it, until it has
// reported the end of the query with an event. Then only the goroutine of the queryLoop may.
type queryResult struct {
	writtenAt time.Time // time at which the message was written; zero before
	msg       *dns.Msg
	err       error
}

// A sharedQueryState is the part of a query that other queries may change: its slots, its connection, and whether it
// was stopped. Pool.mu guards the fields. The field sent may be read without the lock once the query has its slots.
type sharedQueryState struct {
	sent             time.Time     // time at which the query got its slots; not changed afterwards
	hasSlots         bool          // the query has its slots
	evictable        *list.Element // element in sockets.evictable; nil if the query is not evictable
	conn             net.Conn
	cancelDial       context.CancelFunc // cancels opening the connection
	stopped          bool               // stopExchange was called
	abandoned        bool               // the Task has ended
	countedAsTimeout bool               // recordTimeout was called
}

// queryOptions holds the properties of a query that remain when it is sent to the same server again. This happens over
// TCP after a truncated response, and without EDNS if the server rejects EDNS.
type queryOptions struct {
	number       int  // number of the attempt, see Attempt.Attempt
	hedge        bool // the query is sent because an earlier answer is late
	tcp          bool // the query is sent over TCP
	withoutEDNS  bool // the query has no OPT record
	paidByBudget bool // a token of the hedge budget was spent for the query
}

// A queryState is the stage of a query: waiting for slots, sent, evicted by another query, or overdue.
type queryState int8

const (
	stateWaiting queryState = iota // the query waits for slots
	stateSent                      // the query has its slots, and was sent or is about to be sent
	stateEvicted                   // the query lost its slots to another query; it counts as sent until its retransmission timeout
	stateOverdue                   // the retransmission timeout has passed; an answer is still accepted
)

// nextActionTime returns the time at which the queryLoop must act if q is still unanswered. At first it is the time at
// which a hedge is due. Once the hedge was considered, it is the end of the retransmission timeout.
func (q *query) nextActionTime() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.hedgeDelay + q.processDelay)
	}
	return q.sent.Add(q.rto + q.processDelay)
}

// loserDeadline returns the time until which q waits for its answer as a loser: after its Task has ended and no longer
// needs the answer. A late answer still updates the health of the server.
func (q *query) loserDeadline() time.Time {
	if q.tcp {
		return q.sent.Add(tcpTimeout)
	}
	return q.sent.Add(answerTimeout)
}

// A queryEvent reports to the queryLoop that one of its queries has ended, or that a query was sent that had to wait for
// its slots (see slotLimits).
type queryEvent struct {
	*query
	ended bool // true if the query has ended; false if it was sent after a wait for slots
}

// An eventQueue passes queryEvents from the goroutines of a Task's queries to the queryLoop of the Task. It is
// unbounded, so that these goroutines never block. It is safe for concurrent use.
type eventQueue struct {
	wake chan struct{} // has an element if there are events; its capacity is 1

	mu     sync.Mutex // guards events; Pool.mu must not be locked while mu is locked
	events []queryEvent
}

// pushEvent adds an event to the queue, and wakes the goroutine of the queryLoop. It does not block.
func (q *eventQueue) pushEvent(e queryEvent) {
	q.mu.Lock()
	q.events = append(q.events, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// takeEvents empties the queue, and returns its events in the order of arrival.
//
// last must be the result of the previous call, or nil. The queue reuses the memory of last, so the caller must not use
// last afterwards.
func (q *eventQueue) takeEvents(last []queryEvent) []queryEvent {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = last[:0]
	return events
}

// A socketLimiter limits the number of open sockets. If a query needs a socket and none is free, it stops an evictable
// query. A query is evictable if its answer is unlikely to come, or is not needed any more. Pool.mu guards it.
type socketLimiter struct {
	slots     semaphore           // limits the open sockets
	open      map[*query]struct{} // queries that have slots, and therefore may have a socket
	evictable list.List           // queries (*query) that are unlikely to be answered, oldest first
}

// A slotLimit is a semaphore together with its number of slots.
type slotLimit struct {
	*semaphore
	max int32
}

// slotLimits returns the three semaphores of which q needs a slot before it is sent. They limit the queries in flight
// to one zone, to one server, and of the whole Pool. q has its slots until it is answered, has failed or was stopped.
func (q *query) slotLimits() [3]slotLimit {
	return [...]slotLimit{{&q.zone.slots, q.maxPerZone}, {&q.server.slots, q.maxPerServer}, {&q.sockets.slots, maxSockets}}
}

// tryAcquireSlots acquires the slots that q needs before it may be sent: one each of its zone, its server and the Pool.
// It returns true if it has acquired all. Otherwise it acquires none and returns false. It stops evictable queries to
// get free slots. The caller must hold mu.
func (q *query) tryAcquireSlots() bool {
	for _, p := range q.slotLimits() {
		if p.used >= p.max {
			q.evictQuery(p.semaphore)
		}
		if !p.hasFreeSlot(p.max) {
			return false
		}
	}
	for _, p := range q.slotLimits() {
		p.used++
	}
	q.markSent()
	return true
}

// markSent records that q is sent now, after q has acquired its slots. It adds q to the open queries of the Pool, and
// counts it as a user of its zone. The caller must hold mu.
func (q *query) markSent() {
	q.hasSlots = true
	q.sent = time.Now()
	q.zone.users++
	q.sockets.open[q] = struct{}{}
}

// awaitSlots waits for the slots that q needs, one after the other. It returns true if q has all of them and may be
// sent.
//
// It returns false if the Task has ended, the Pool is closed, or the zone is in backoff. Then q has no slots. taskDone
// must be closed at the end of the Task.
func (q *query) awaitSlots(taskDone <-chan struct{}) bool {
	var has []slotLimit
	ok := true
	for _, s := range q.slotLimits() {
		q.mu.Lock()
		if s.used >= s.max {
			q.evictQuery(s.semaphore)
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
	q.markSent()
	return true
}

// releaseSlots releases the slots of q (see slotLimits) for other queries, and removes q from the users of the zone. It
// does nothing if q has no slots. The caller must hold mu.
func (q *query) releaseSlots() {
	if !q.hasSlots {
		return
	}
	q.hasSlots = false
	if q.evictable != nil {
		q.sockets.evictable.Remove(q.evictable)
	}
	for _, p := range q.slotLimits() {
		p.releaseSlot()
	}
	delete(q.sockets.open, q)
	q.zones.releaseZone(q.zone, q.elapsed())
}

// stopExchange stops q: it closes the connection of q, or cancels the opening of the connection. The caller must hold
// mu.
func (q *query) stopExchange() {
	q.stopped = true
	if q.cancelDial != nil {
		q.cancelDial()
	}
	if q.conn != nil {
		_ = q.conn.Close()
	}
}

// evictQuery stops the oldest evictable query that has a slot of the semaphore s, so that the slot becomes free. If s
// limits a server or a zone, it only stops a query that was probably lost. The caller must hold mu.
func (p *Pool) evictQuery(s *semaphore) {
	for e := p.sockets.evictable.Front(); e != nil; e = e.Next() {
		q := e.Value.(*query)
		if s == &p.sockets.slots || (s == &q.server.slots || s == &q.zone.slots) && q.isProbablyLost() {
			q.releaseSlots()
			q.stopExchange()
			return
		}
	}
}

// markEvictable records that q is unlikely to be answered, or that its answer is not needed. From then on, another
// query that needs the socket of q may stop q. If a query waits for a socket already, it stops an evictable query at
// once. The caller must hold mu.
func (q *query) markEvictable() {
	if !q.hasSlots || q.evictable != nil {
		return
	}
	q.evictable = q.sockets.evictable.PushBack(q)
	if q.sockets.slots.last != nil {
		q.evictQuery(&q.sockets.slots)
	}
}

// isLaterQueryAnswered reports whether the server has answered a query that was sent after q. In this case q was
// probably lost. The caller must hold mu.
func (q *query) isLaterQueryAnswered() bool { return q.predatesAnsweredQuery(q.server.lastAnswer) }

// predatesAnsweredQuery reports whether q was sent before another query to the same server, which was answered at the
// time answered (since Pool.epoch). The server then is responsive, and q was probably lost. The time at which the other
// query was sent is estimated: one round trip time of the server before answered. The caller must hold mu.
func (q *query) predatesAnsweredQuery(answered time.Duration) bool {
	return answered-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// isProbablyLost reports whether q was probably lost, so that its slots may be used for another query. It is true after
// answerTimeout. It is also true after the retransmission timeout of q, if the server has answered a later query. The
// caller must hold mu.
func (q *query) isProbablyLost() bool {
	passed := time.Since(q.sent)
	return passed >= answerTimeout || passed >= q.rto && q.isLaterQueryAnswered()
}

// abandonQuery records that the answer to q is not needed any more, because its Task has ended. The caller must hold
// mu.
//
// A query over UDP continues, because a late answer still shows the round trip time of the server. It becomes
// evictable: another query may stop it to get its slots. If there are more than maxEvictable evictable queries, it
// stops. A query over TCP always stops.
func (q *query) abandonQuery() {
	q.abandoned = true
	if !q.hasSlots {
		return
	}
	q.markEvictable()
	if q.tcp || q.sockets.evictable.Len() > maxEvictable {
		q.releaseSlots()
		q.stopExchange()
		return
	}
	if q.countedAsTimeout && q.conn != nil {
		_ = q.conn.SetDeadline(q.loserDeadline()) // extendDeadline has removed it
	}
}

// recordTimeout counts q as unanswered in the health of its server, its zone and its address family. Only the first
// call has an effect. The caller must hold mu.
func (q *query) recordTimeout() {
	if q.countedAsTimeout {
		return
	}
	q.countedAsTimeout = true
	now, hasAnsweredZone := q.elapsed(), q.zoneHealth.hasAnswered
	if !q.predatesAnsweredQuery(q.zoneHealth.lastAnswer) { // otherwise the server has answered a later query about the zone
		q.zoneHealth.recordUnansweredQuery(now)
		if !q.isLaterQueryAnswered() {
			q.healthByZone.getOrCreateHealth(healthKey{q.addr, unansweredZones}, now).recordUnansweredZone(now, q.zoneQtype.zoneHash())
			if hasAnsweredZone {
				q.server.recordUnansweredZone(now, q.zoneQtype.zoneHash())
			}
		}
	}
	if now >= q.zone.ignoreTimeoutsUntil {
		q.zone.ignoreTimeoutsUntil = now + outageInterval
		q.countForOutageDetection(false)
	}
	q.families[familyIndex(q.addr)].recordUnansweredZone(now, q.zone.name, hasAnsweredZone)
}

// recordAnswer records that the server has answered q, and the round trip time. The server and the zone leave their
// backoff, and other queries get the slots of q. It returns true if the Task still needs the answer.
func (q *query) recordAnswer() bool {
	now := time.Now()
	took := min(now.Sub(q.writtenAt), answerTimeout)
	at := now.Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	*q.backoff = zoneBackoff{}
	s, st := q.server, q.zoneHealth
	*st = zoneServerHealth{lastAnswer: at, lastQuery: st.lastQuery, hasAnswered: true}
	q.healthByZone.endZoneBackoffs(q.addr)
	if q.tcp {
		s.backoffState = backoffState{}
	} else {
		if !s.hasAnswered() {
			q.firstRTTs.addSample(now, took)
		}
		s.recordRTT(at, took, q.firstRTTs.median)
		q.countForOutageDetection(true)
	}
	q.families[familyIndex(q.addr)] = familyHealth{hasAnswered: true}
	q.releaseSlots()
	return !q.abandoned
}
