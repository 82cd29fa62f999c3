// Package virtual simulates a client, its hedging policy and a backend as
// discrete events in virtual time: a million requests in about a second, and
// the same answer for the same seed.
//
// The seed, the request and the attempt decide how long an attempt takes. All
// policies therefore meet the same latencies, and differ only by what they do.
//
// The network is not simulated: an attempt takes what its [Model] says, plus
// what it waits in a [Queue], and a cancelled attempt ends at once.
package virtual

import (
	"context"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A World is what a policy is put into.
type World struct {
	// Hosts is the number of backends; each request is for one of them, at random. 0 means one.
	Hosts int
	// Workers is how many callers send one request after the other (a closed
	// loop). If it is 0, requests arrive at random at Rate, whether or not those
	// before are answered (an open loop).
	Workers int
	Rate    float64 // requests per second
	// Load multiplies the rate in the course of an episode; nil: it stays.
	Load func(time.Duration) float64

	// Requests is how many there are in each of Episodes. Each episode begins
	// with a new policy, which knows nothing. 0 means one episode.
	Requests int
	Episodes int

	// Model says how long an attempt is served.
	Model Model
	// Queue says where it waits before that; nil: nowhere.
	Queue *Queue
	// Timeout is when callers give up; 0: never.
	Timeout time.Duration
	// Refused is the share of the attempts that are answered by a refusal: the
	// server asks for less. It is for worlds without a Queue.
	Refused float64
	// Absent is the share of the requests that every attempt answers with "not found". Such an
	// answer of a hedge does not end its call unless AbsentEnds, which stands for WithAnswerStatus.
	Absent     float64
	AbsentEnds bool
	// Fleet says that each host is a client instead, with a policy of its own, and
	// that all have the backend in common.
	Fleet bool
}

// A Policy decides when a call is hedged. A Run calls it from one goroutine.
// Time is counted from the beginning of the episode.
type Policy interface {
	// Begin counts a call that starts now and returns when to hedge it, in time
	// since its start, rising, [MaxHedges] at most.
	Begin(now time.Duration, host int) []time.Duration
	// Admit is asked when a call is unanswered at one of those times, which the
	// index says, and reports whether a hedge starts.
	Admit(now time.Duration, host, index int) bool
	// Done learns how a call ended.
	Done(now time.Duration, host int, e End)
}

// An End is how a call ended.
type End struct {
	Latency time.Duration   // what the caller waited
	Winner  int             // the attempt that answered; -1: the caller gave up, or was refused
	Refused bool            // by all attempts
	Planned bool            // Begin returned a time to hedge
	Reached bool            // the first of these times
	Starts  []time.Duration // of the attempts, since the call's start
}

// MaxHedges is the most hedges of one call.
const MaxHedges = 3

// Run puts a new policy for each episode into the world and returns the calls
// in the order in which they ended. From time to time it calls progress, if that
// is not nil, with the number of calls so far. Run returns what it has when ctx ends.
func (w World) Run(ctx context.Context, seed uint64, policy func() Policy, progress func(calls int)) []latency.Call {
	episodes := max(w.Episodes, 1)
	calls := make([]latency.Call, 0, episodes*w.Requests)
	for e := range episodes {
		r := &run{World: w, policy: w.begin(policy), draws: newDraws(seed, e), calls: calls, before: len(calls)}
		r.Hosts = max(r.Hosts, 1)
		r.events.list = make([]event, 0, 1024)
		if w.Queue != nil {
			r.stations = w.Queue.stations()
		}
		if !r.simulate(ctx, progress) {
			return r.calls
		}
		calls = r.calls
	}
	return calls
}

type run struct {
	World
	policy Policy
	draws  *Draws
	events heap
	now    time.Duration

	live   []live  // calls under way, and free places
	free   []int32 // places in live
	issued int

	stations []station
	calls    []latency.Call
	before   int // calls of earlier episodes
}

// live is a call under way.
type live struct {
	gen     uint32 // changes when the place is used for another call
	host    int16
	index   int32
	started uint8
	next    uint8 // index of the next delay
	denied  uint8
	refused uint8 // attempts
	reached bool
	start   time.Duration
	delays  []time.Duration
	starts  [1 + MaxHedges]time.Duration
	served  [1 + MaxHedges]*slot    // where each attempt is served, in a queue
	waits   [1 + MaxHedges]*station // where it waits
}

// ref names a call, or what used to be one.
type ref struct {
	place int32
	gen   uint32
}

func (r *run) simulate(ctx context.Context, progress func(int)) bool {
	for range r.Workers {
		r.arrive()
	}
	if r.Workers == 0 {
		r.events.push(event{at: r.gap(), kind: arrival})
	}
	for n := 0; r.events.len() > 0; n++ {
		if n%65536 == 0 {
			if ctx.Err() != nil {
				return false
			}
			if progress != nil {
				progress(len(r.calls))
			}
		}
		e := r.events.pop()
		r.now = e.at
		switch e.kind {
		case arrival:
			r.arrive()
			if r.issued < r.Requests {
				r.events.push(event{at: r.now + r.gap(), kind: arrival})
			}
		case served:
			r.leave(e.slot, e.call.gen)
		default:
			if r.live[e.call.place].gen != e.call.gen {
				continue // the call is over
			}
			switch e.kind {
			case due:
				r.hedge(e.call)
			case answer:
				switch c := &r.live[e.call.place]; {
				case r.notTaken(c.index, e.n): // the primary is out, and will end the call
				case !r.refused(c.index, e.n):
					r.end(e.call, int(e.n))
				case !r.refuse(e.call):
					r.end(e.call, -1)
				}
			case giveUp:
				r.end(e.call, -1)
			}
		}
	}
	if progress != nil {
		progress(len(r.calls))
	}
	return true
}

// gap returns the time to the next arrival.
func (r *run) gap() time.Duration {
	rate := r.Rate
	if r.Load != nil {
		rate *= r.Load(r.now)
	}
	return r.draws.Gap(r.issued, rate)
}

func (r *run) arrive() {
	if r.issued >= r.Requests {
		return
	}
	var place int32
	if n := len(r.free); n > 0 {
		place, r.free = r.free[n-1], r.free[:n-1]
	} else {
		place = int32(len(r.live))
		r.live = append(r.live, live{})
	}
	c := &r.live[place]
	*c = live{gen: c.gen, index: int32(r.issued), start: r.now}
	if r.Hosts > 1 {
		c.host = int16(r.draws.at(r.issued, -2).IntN(r.Hosts))
	}
	r.issued++
	me := ref{place, c.gen}
	c.delays = r.policy.Begin(r.now, int(c.host))
	if len(c.delays) > 0 {
		r.events.push(event{at: r.now + c.delays[0], kind: due, call: me})
	}
	if r.Timeout > 0 {
		r.events.push(event{at: r.now + r.Timeout, kind: giveUp, call: me})
	}
	r.attempt(me)
}

// hedge starts a hedge that is due, if the policy admits it.
func (r *run) hedge(me ref) {
	c := &r.live[me.place]
	index := int(c.next)
	c.next++
	c.reached = true
	if int(c.next) < len(c.delays) {
		r.events.push(event{at: c.start + c.delays[c.next], kind: due, call: me})
	}
	if !r.policy.Admit(r.now, int(c.host), index) {
		c.denied++
		return
	}
	r.attempt(me)
}

// attempt starts the call's next attempt.
func (r *run) attempt(me ref) {
	c := &r.live[me.place]
	n := c.started
	c.started++
	c.starts[n] = r.now - c.start
	if r.Queue != nil {
		r.join(job{call: me, index: c.index, host: c.host, n: n})
		return
	}
	d := r.Model(r.draws, Attempt{Request: int(c.index), N: int(n), Host: int(c.host), At: r.now})
	r.events.push(event{at: r.now + d, kind: answer, call: me, n: n})
}

func (r *run) end(me ref, winner int) {
	c := &r.live[me.place]
	e := End{
		Latency: r.now - c.start, Winner: winner, Refused: c.refused == c.started, Planned: len(c.delays) > 0, Reached: c.reached, Starts: c.starts[:c.started],
	}
	r.policy.Done(r.now, int(c.host), e)
	r.calls = append(r.calls, latency.Call{
		Start: c.start, Latency: e.Latency, Index: c.index, Host: c.host, Winner: int8(winner), Hedges: c.started - 1, Denied: c.denied,
	})
	c.gen++
	r.free = append(r.free, me.place)
	if r.Queue != nil {
		r.over(c, winner)
	}
	if r.Workers > 0 {
		r.arrive()
	}
}
