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
	maxExpendable = 512  // expendable queries; with more, a losing query ends at once
)

// A query is one message to one server and the wait for its answer.
type query struct {
	// Set before it is started.
	*Pool
	queryOptions
	queryZoneState
	server          *server
	addr            netip.AddrPort // the server's
	wire            *wire.Query
	inbox           *eventQueue // of the goroutine that runs the queryLoop
	started         time.Time
	hedgeDelay, rto time.Duration

	// Of the goroutine that asks.
	state        queryState
	processDelay time.Duration // by which timers were late
	hedgeable    bool          // no hedge was considered yet

	sent  time.Time // when it got its slots
	wrote time.Time // when it left this machine; zero: it has not
	msg   *dns.Msg
	err   error

	hasSlots         bool
	expendable       *list.Element // element of sockets.expendable; nil: not expendable
	conn             net.Conn
	cancel           context.CancelFunc // cancels opening a connection
	stopped          bool
	abandoned        bool // its task has ended
	countedAsTimeout bool // it counts as unanswered
}

// A queryZoneState is the zone and the kind of question of a query, with the state kept for them.
type queryZoneState struct {
	zone       *zoneState
	zoneQtype  zoneQtypeID
	backoff    *zoneBackoff      // of the zone, for this kind of question
	zoneHealth *zoneServerHealth // of the server, for this topic
}

// A queryOptions is the form of a query. A repetition changes one field.
type queryOptions struct {
	number       int  // of the attempt
	hedge        bool // sent because an answer was late
	tcp          bool
	withoutEDNS  bool
	paidByBudget bool // by the hedge budget
}

// queryState is the progress of a query as seen by the queryLoop.
type queryState int8

const (
	stateWaiting queryState = iota // for slots
	stateSent                      // or about to be
	stateEvicted                   // its socket was needed; until it is overdue, it counts as sent
	stateOverdue                   // the retransmission timeout has passed
)

// nextTimer returns when the hedge or, after that, the next server is due.
func (q *query) nextTimer() time.Time {
	if q.hedgeable {
		return q.sent.Add(q.hedgeDelay + q.processDelay)
	}
	return q.sent.Add(q.rto + q.processDelay)
}

// loserDeadline returns when q ends if its task has ended.
func (q *query) loserDeadline() time.Time {
	if q.tcp {
		return q.sent.Add(tcpTimeout)
	}
	return q.sent.Add(answerTimeout)
}

// A queryEvent reports the progress of a query to the queryLoop.
type queryEvent struct {
	*query
	ended bool // otherwise it was sent after a wait
}

// An eventQueue has the events of a task's queries. It is safe for concurrent use.
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

// takeEvents returns the events since the last call. It reuses the memory of last.
func (b *eventQueue) takeEvents(last []queryEvent) []queryEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = last[:0]
	return events
}

// A socketLimiter limits the sockets that are open to all servers. Pool.mu guards it.
type socketLimiter struct {
	slots
	open       map[*query]struct{} // queries with a slot and thus possibly a socket
	expendable list.List           // queries unlikely to be answered, the oldest first; their sockets are taken first
}

// A slotLimit is a slot that a query needs, and the number of slots of its kind.
type slotLimit struct {
	*slots
	max int32
}

func (q *query) neededSlots() [3]slotLimit {
	return [...]slotLimit{{&q.zone.slots, q.maxPerZone}, {&q.server.slots, q.maxPerServer}, {&q.sockets.slots, maxSockets}}
}

// tryAcquireSlots acquires the slots that q needs if all are free. The caller holds mu.
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

// recordSlots records that q has its slots. The caller holds mu.
func (q *query) recordSlots() {
	q.hasSlots = true
	q.sent = time.Now()
	q.zone.users++
	q.sockets.open[q] = struct{}{}
}

// awaitSlots waits for the slots that q needs, one after the other. It reports false if gone is closed, the task has
// ended, or the zone is in backoff.
func (q *query) awaitSlots(gone <-chan struct{}) bool {
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
	q.recordSlots()
	return true
}

// releaseSlots returns the slots of q. Further calls have no effect. The caller holds mu.
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

// stopExchange closes the connection of q. The caller holds mu.
func (q *query) stopExchange() {
	q.stopped = true
	if q.cancel != nil {
		q.cancel()
	}
	if q.conn != nil {
		_ = q.conn.Close()
	}
}

// evictQuery ends the oldest expendable query that occupies a slot of s. For a slot of a server or a zone, that query must
// have been dropped. The caller holds mu.
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

// markExpendable lets q end when another query needs its socket. The caller holds mu.
func (q *query) markExpendable() {
	if !q.hasSlots || q.expendable != nil {
		return
	}
	q.expendable = q.sockets.expendable.PushBack(q)
	if q.sockets.last != nil {
		q.evictQuery(&q.sockets.slots)
	}
}

// hasLaterAnswer reports whether the server has answered a query sent after q. The caller holds mu.
func (q *query) hasLaterAnswer() bool { return q.wasSentBefore(q.server.lastAnswer) }

// wasSentBefore reports whether q was sent before the query whose answer came at lastAnswer. The caller holds mu.
func (q *query) wasSentBefore(seen time.Duration) bool {
	return seen-time.Duration(q.server.rtt.SRTT) > q.sent.Sub(q.epoch)
}

// isDropped reports whether q was probably dropped by the server or the network. The caller holds mu.
func (q *query) isDropped() bool {
	passed := time.Since(q.sent)
	return passed >= answerTimeout || passed >= q.rto && q.hasLaterAnswer()
}

// abandonByTask lets q go on after its task: a late answer still tells the RTT of the server. The caller holds mu.
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

// recordTimeout counts q as unanswered, once. The caller holds mu.
func (q *query) recordTimeout() {
	if q.countedAsTimeout {
		return
	}
	q.countedAsTimeout = true
	now, known := q.elapsed(), q.zoneHealth.hasAnswered
	if !q.wasSentBefore(q.zoneHealth.lastAnswer) { // otherwise the server is not silent
		q.zoneHealth.recordUnansweredQuery(now)
		if !q.hasLaterAnswer() {
			q.healthByZone.getOrCreateHealth(healthKey{q.addr, unansweredZones}, now).recordUnansweredZone(now, q.zoneQtype.zoneHash())
			if known {
				q.server.recordUnansweredZone(now, q.zoneQtype.zoneHash())
			}
		}
	}
	if now >= q.zone.outageReported {
		q.zone.outageReported = now + outageInterval
		q.recordForOutage(false)
	}
	q.families[familyIndex(q.addr)].recordUnansweredZone(now, q.zone.name, known)
}

// recordAnswer records the RTT of an answer, and reports whether it is still needed.
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
