package dnshedge

import (
	"hash/maphash"
	"sync"
)

// subqueuesPerQueue is the number of subqueues, so large that few domains share a subqueue with a flooded domain.
const subqueuesPerQueue = 128

// A fairQueue holds waiting queries in subqueues by the domain of their question or by client. If the queue is full,
// the longest waiting query of a longest subqueue is cancelled. So a flood of names in one dead domain displaces its
// own queries first. It is safe for concurrent use.
type fairQueue struct {
	max int

	mu        sync.Mutex // guards all
	seed      maphash.Seed
	n         int        // questions that wait
	arrivals  uint64     // number of questions that came
	subqueues []subqueue // nil before first use
}

// A queuedQuery is the entry of one query in a fairQueue. The zero value is ready for use, once.
type queuedQuery struct {
	canceller
	subqueue   *subqueue // nil: the query is not in the queue
	prev, next *queuedQuery
	arrival    uint64
}

// A subqueue is a list of queued queries, in the order of their arrival.
type subqueue struct {
	first, last *queuedQuery
	n           int
}

func (l *subqueue) appendQuery(p *queuedQuery) {
	p.subqueue, p.prev = l, l.last
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
	l.n++
}

func (l *subqueue) removeQuery(p *queuedQuery) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.subqueue, p.prev, p.next = nil, nil, nil
	l.n--
}

// A canceller is a waiting query that can be cancelled.
type canceller interface{ Cancel() }

// enqueue adds a query about a domain. me is zero. If the queue is full, it removes and cancels the oldest query of a
// longest subqueue.
func (l *fairQueue) enqueue(me *queuedQuery, c canceller, domain string) {
	l.mu.Lock()
	l.arrivals++
	me.canceller, me.arrival = c, l.arrivals
	l.subqueueOf(domain).appendQuery(me)
	var first *queuedQuery
	if l.n++; l.n > l.max {
		first = l.longestWaiting()
		l.removeQuery(first)
	}
	l.mu.Unlock()
	if first != nil {
		first.Cancel()
	}
}

// subqueueOf returns the subqueue of a domain. The caller holds mu.
func (l *fairQueue) subqueueOf(domain string) *subqueue {
	if l.subqueues == nil {
		l.subqueues, l.seed = make([]subqueue, subqueuesPerQueue), maphash.MakeSeed()
	}
	return &l.subqueues[maphash.String(l.seed, domain)%subqueuesPerQueue]
}

// longestWaiting returns the oldest query of a longest subqueue. The caller holds mu.
func (l *fairQueue) longestWaiting() (oldest *queuedQuery) {
	for i := range l.subqueues {
		lane := &l.subqueues[i]
		if lane.n == 0 || oldest != nil && l.subqueueShare(lane) < l.subqueueShare(oldest.subqueue) {
			continue
		}
		if p := lane.first; oldest == nil || l.subqueueShare(lane) > l.subqueueShare(oldest.subqueue) || p.arrival < oldest.arrival {
			oldest = p
		}
	}
	return oldest
}

// subqueueShare returns the share of the queue that a subqueue takes, in eighths. A subqueue with fewer than eight
// queries has share 0: it may be long by chance.
func (l *fairQueue) subqueueShare(lane *subqueue) int {
	if lane.n < 8 {
		return 0
	}
	return lane.n * 8 / l.max
}

// removeQuery removes a query. The caller holds mu.
func (l *fairQueue) removeQuery(p *queuedQuery) {
	p.subqueue.removeQuery(p)
	l.n--
}

// dequeue removes a query, and reports whether it had been removed before.
func (l *fairQueue) dequeue(me *queuedQuery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if me.subqueue == nil {
		return true
	}
	l.removeQuery(me)
	return false
}
