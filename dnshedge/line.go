package dnshedge

import (
	"container/list"
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
	n     int         // that wait
	turn  uint64      // counts those who came
	lanes []list.List // of *place; nil before first use
}

// A place is one in a line.
type place struct {
	canceller
	lane *list.List
	at   *list.Element // in lane; nil: it has been left
	turn uint64
}

// A canceller is somebody who waits, and can be told not to.
type canceller interface{ Cancel() }

// enter adds somebody who asks about a domain. If the line is too long then, the first of the longest lane leaves it, and is
// cancelled; of lanes of about that length it is the one who has waited longest.
func (l *line) enter(c canceller, domain string) *place {
	l.mu.Lock()
	l.turn++
	me := &place{canceller: c, lane: l.lane(domain), turn: l.turn}
	me.at = me.lane.PushBack(me)
	var first *place
	if l.n++; l.n > l.max {
		first = l.first()
		l.remove(first)
	}
	l.mu.Unlock()
	if first != nil {
		first.Cancel()
	}
	return me
}

// lane returns the lane of a domain. The caller holds mu.
func (l *line) lane(domain string) *list.List {
	if l.lanes == nil {
		l.lanes, l.seed = make([]list.List, lanes), maphash.MakeSeed()
	}
	return &l.lanes[maphash.String(l.seed, domain)%lanes]
}

// first returns the first of the longest lane. The caller holds mu.
func (l *line) first() (first *place) {
	for i := range l.lanes {
		lane := &l.lanes[i]
		if lane.Len() == 0 || first != nil && l.eighths(lane) < l.eighths(first.lane) {
			continue
		}
		if p := lane.Front().Value.(*place); first == nil || l.eighths(lane) > l.eighths(first.lane) || p.turn < first.turn {
			first = p
		}
	}
	return first
}

// eighths is how much of the line a lane is: less is no flood, and may be chance.
func (l *line) eighths(lane *list.List) int {
	if lane.Len() < 8 {
		return 0
	}
	return lane.Len() * 8 / l.max
}

// remove takes a place out. The caller holds mu.
func (l *line) remove(p *place) {
	p.lane.Remove(p.at)
	p.at = nil
	l.n--
}

// leave takes somebody out, and reports whether that had happened before.
func (l *line) leave(me *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if me.at == nil {
		return true
	}
	l.remove(me)
	return false
}
