package dnshedge

import (
	"hash/maphash"
	"sync"
)

// subqueuesPerQueue is how many lanes a line has: enough that few domains share one with that of a flood.
const subqueuesPerQueue = 128

// A fairQueue is those who wait, in lanes by the domain that they ask about. If too many wait, one of the longest lane is told not to:
// a flood of names of one dead domain drives out itself, and not what takes a while elsewhere. It is safe for concurrent use.
type fairQueue struct {
	max int

	mu    sync.Mutex // guards all
	seed  maphash.Seed
	n     int        // questions that wait
	turn  uint64     // number of questions that came
	lanes []subqueue // nil before first use
}

// A place is the place of one question in a line. The zero place is ready for use, once.
type queuedQuery struct {
	canceller
	lane       *subqueue // nil: the question has left
	prev, next *queuedQuery
	turn       uint64
}

// A subqueue is a list of places, in the order of their turns.
type subqueue struct {
	first, last *queuedQuery
	n           int
}

func (l *subqueue) appendQuery(p *queuedQuery) {
	p.lane, p.prev = l, l.last
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
	p.lane, p.prev, p.next = nil, nil, nil
	l.n--
}

// A canceller is a question that waits, and can be told not to.
type canceller interface{ Cancel() }

// enter adds a question about a domain at a zero place. If the line is too long then, the first of the longest lane leaves it, and is
// cancelled; of lanes of about that length it is the question that has waited longest.
func (l *fairQueue) enqueue(me *queuedQuery, c canceller, domain string) {
	l.mu.Lock()
	l.turn++
	me.canceller, me.turn = c, l.turn
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

// subqueue returns the lane of a domain. The caller holds mu.
func (l *fairQueue) subqueueOf(domain string) *subqueue {
	if l.lanes == nil {
		l.lanes, l.seed = make([]subqueue, subqueuesPerQueue), maphash.MakeSeed()
	}
	return &l.lanes[maphash.String(l.seed, domain)%subqueuesPerQueue]
}

// longestWaiting returns the first of the longest lane. The caller holds mu.
func (l *fairQueue) longestWaiting() (longestWaiting *queuedQuery) {
	for i := range l.lanes {
		lane := &l.lanes[i]
		if lane.n == 0 || longestWaiting != nil && l.subqueueShare(lane) < l.subqueueShare(longestWaiting.lane) {
			continue
		}
		if p := lane.first; longestWaiting == nil || l.subqueueShare(lane) > l.subqueueShare(longestWaiting.lane) || p.turn < longestWaiting.turn {
			longestWaiting = p
		}
	}
	return longestWaiting
}

// subqueueShare is how much of the line a lane is: less is no flood, and may be chance.
func (l *fairQueue) subqueueShare(lane *subqueue) int {
	if lane.n < 8 {
		return 0
	}
	return lane.n * 8 / l.max
}

// remove takes a place out. The caller holds mu.
func (l *fairQueue) removeQuery(p *queuedQuery) {
	p.lane.removeQuery(p)
	l.n--
}

// leave takes somebody out, and reports whether that had happened before.
func (l *fairQueue) dequeue(me *queuedQuery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if me.lane == nil {
		return true
	}
	l.removeQuery(me)
	return false
}
