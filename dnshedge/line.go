package dnshedge

import (
	"hash/maphash"
	"sync"
)

// lanes is how many lanes a line has: enough that few domains share one with that of a flood.
const lanes = 128

// A line is those who wait, in lanes by the domain that they ask about. If too many wait, one of the longest lane is told not to:
// a flood of names of one dead domain drives out itself, and not what takes a while elsewhere. It is safe for concurrent use.
type line struct {
	max int

	mu    sync.Mutex // guards all
	seed  maphash.Seed
	n     int    // questions that wait
	turn  uint64 // number of questions that came
	lanes []lane // nil before first use
}

// A place is the place of one question in a line. The zero place is ready for use, once.
type place struct {
	canceller
	lane       *lane // nil: the question has left
	prev, next *place
	turn       uint64
}

// A lane is a list of places, in the order of their turns.
type lane struct {
	first, last *place
	n           int
}

func (l *lane) append(p *place) {
	p.lane, p.prev = l, l.last
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
	l.n++
}

func (l *lane) remove(p *place) {
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
func (l *line) enter(me *place, c canceller, domain string) {
	l.mu.Lock()
	l.turn++
	me.canceller, me.turn = c, l.turn
	l.lane(domain).append(me)
	var first *place
	if l.n++; l.n > l.max {
		first = l.first()
		l.remove(first)
	}
	l.mu.Unlock()
	if first != nil {
		first.Cancel()
	}
}

// lane returns the lane of a domain. The caller holds mu.
func (l *line) lane(domain string) *lane {
	if l.lanes == nil {
		l.lanes, l.seed = make([]lane, lanes), maphash.MakeSeed()
	}
	return &l.lanes[maphash.String(l.seed, domain)%lanes]
}

// first returns the first of the longest lane. The caller holds mu.
func (l *line) first() (first *place) {
	for i := range l.lanes {
		lane := &l.lanes[i]
		if lane.n == 0 || first != nil && l.eighths(lane) < l.eighths(first.lane) {
			continue
		}
		if p := lane.first; first == nil || l.eighths(lane) > l.eighths(first.lane) || p.turn < first.turn {
			first = p
		}
	}
	return first
}

// eighths is how much of the line a lane is: less is no flood, and may be chance.
func (l *line) eighths(lane *lane) int {
	if lane.n < 8 {
		return 0
	}
	return lane.n * 8 / l.max
}

// remove takes a place out. The caller holds mu.
func (l *line) remove(p *place) {
	p.lane.remove(p)
	l.n--
}

// leave takes somebody out, and reports whether that had happened before.
func (l *line) leave(me *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if me.lane == nil {
		return true
	}
	l.remove(me)
	return false
}
