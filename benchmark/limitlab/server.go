package limitlab

import (
	"container/heap"
	"math"
)

// A request is one that a server works on, and before that one that waits. Moments are seconds since the start, as float64: where requests share
// a processor, what is left of each is divided at every event.
type request struct {
	number  int     // of those that are measured; -1: it is not
	arrived float64 // when
	work    float64 // how many seconds it takes if it is alone
	luck    float64 // uniform from 0 to 1, drawn when it arrived
	due     float64 // when what it is at ends, in the time of its heap
	stage   stage   // of a pool
	ended   func(now float64, waiting int)
}

// dues are requests by when they are due.
type dues []*request

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].due < d[j].due }
func (d dues) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dues) Push(x any)        { *d = append(*d, x.(*request)) }
func (d *dues) Pop() any {
	last := len(*d) - 1
	r := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return r
}

// A server works on requests.
type server interface {
	// begin has it work on one more.
	begin(now float64, r *request)
	// next says when something happens in it; false: nothing does.
	next() (at float64, ok bool)
	// step does what happens now. It returns the request that is finished by that, or nil.
	step(now float64) *request
	// scale multiplies its capacity.
	scale(by float64)
}

// sharing is a server whose requests are all worked on at the same time, each at the same pace.
type sharing struct {
	capacity float64
	pace     func(n, capacity float64) float64 // of each of n requests; 1: as if it were alone

	at   dues    // in the time of worked
	work float64 // how much was done for a request that is there since the start
	last float64 // when
}

func (s *sharing) advance(now float64) {
	if n := len(s.at); n > 0 {
		s.work += (now - s.last) * s.pace(float64(n), s.capacity)
	}
	s.last = now
}

func (s *sharing) begin(now float64, r *request) {
	s.advance(now)
	r.due = s.work + r.work
	heap.Push(&s.at, r)
}

func (s *sharing) next() (at float64, ok bool) {
	if len(s.at) == 0 {
		return 0, false
	}
	return s.last + max(0, s.at[0].due-s.work)/s.pace(float64(len(s.at)), s.capacity), true
}

func (s *sharing) step(now float64) *request {
	s.advance(now)
	s.work = max(s.work, s.at[0].due) // whatever rounding has left of it
	return heap.Pop(&s.at).(*request)
}

func (s *sharing) scale(by float64) { s.capacity *= by }

// A stage is where a request is in a pool.
type stage int

const (
	alone  stage = iota // it needs no connection any more
	before              // it will need one
	served              // it has one
)

// pool is a server whose requests need one of a few connections, first come first served. A lock is a pool of one.
type pool struct {
	connections int
	free        float64                   // how much of the work of a request needs no connection, as a share; that comes first
	skip        float64                   // the share of requests that need none at all
	slower      func(waiting int) float64 // how many times as long a connection takes while others wait; nil: once

	busy int
	line []*request
	at   dues // in seconds since the start
}

func (p *pool) begin(now float64, r *request) {
	switch {
	case r.luck < p.skip:
		p.until(now+r.work, alone, r)
	case p.free > 0:
		p.until(now+r.work*p.free, before, r)
	default:
		p.line = append(p.line, r)
		p.serve(now)
	}
}

// until has a request be at a stage until a moment.
func (p *pool) until(due float64, s stage, r *request) {
	r.due, r.stage = due, s
	heap.Push(&p.at, r)
}

// serve gives connections to those who wait.
func (p *pool) serve(now float64) {
	for len(p.line) > 0 && p.busy < p.connections {
		r := p.line[0]
		p.line = p.line[1:]
		p.busy++
		takes := r.work * (1 - p.free)
		if p.slower != nil {
			takes *= p.slower(len(p.line))
		}
		p.until(now+takes, served, r)
	}
}

func (p *pool) next() (at float64, ok bool) {
	if len(p.at) == 0 {
		return 0, false
	}
	return p.at[0].due, true
}

func (p *pool) step(now float64) (finished *request) {
	r := heap.Pop(&p.at).(*request)
	switch r.stage {
	case before:
		p.line = append(p.line, r)
	case served:
		p.busy--
		finished = r
	case alone:
		finished = r
	}
	p.serve(now)
	return finished
}

// scale changes the number of connections. Those that are in use stay until their requests are finished, and new ones are used at the next event.
func (p *pool) scale(by float64) { p.connections = int(math.Round(by * float64(p.connections))) }
