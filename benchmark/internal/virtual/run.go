// Package virtual simulates a client with a hedging policy and a backend as discrete events in virtual time: a million
// requests in about a second, and the same result for the same seed.
//
// The seed, the request and the attempt determine the duration of an attempt. All policies therefore meet the same
// latencies.
//
// The network is not simulated. An attempt takes the time of its [LatencyModel] after its time in a queue, see
// [QueueConfig]. A cancelled attempt ends at once.
package virtual

import (
	"context"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A Simulation describes the requests of a client and the backend that answers them.
type Simulation struct {
	// Hosts is the number of backends. Each request is for a random one. 0 means one.
	Hosts int
	// Workers send one request after another: a closed loop. 0 means an open loop: requests arrive at random times at
	// Rate.
	Workers int
	Rate    float64 // requests per second

	// Requests is the number of requests of each of Episodes. Each episode begins with a new policy. 0 Episodes means one.
	Requests int
	Episodes int

	// Model has the time that a server needs for an attempt.
	Model LatencyModel
	// Queue has the servers. nil means that an attempt never waits for a server.
	Queue *QueueConfig
	// Timeout is the time after which calls fail. 0 means that they do not.
	Timeout time.Duration
	// PushbackShare is the share of the attempts that are answered by pushback. It needs a nil Queue.
	PushbackShare float64
	// SeparateClients makes each host a client with a policy of its own. All clients share the backend.
	SeparateClients bool
}

// A Policy decides when simulated calls are hedged. Its methods are called from one goroutine. The parameter now is the
// time since the start of the episode, a part of the simulation that has a policy of its own.
type Policy interface {
	// ScheduleHedges is called at the start of a call. It returns the hedge delays of the call, in rising order, at most
	// [MaxHedges].
	ScheduleHedges(now time.Duration, host int) []time.Duration
	// AdmitHedge reports whether a hedge starts. It is called when a call has no answer after the delay with that index.
	AdmitHedge(now time.Duration, host, index int) bool
	// RecordResult records the result of a call.
	RecordResult(now time.Duration, host int, r CallResult)
}

// A CallResult is the result of a call, from which a Policy learns when to hedge later calls.
type CallResult struct {
	Latency           time.Duration   // until the answer or the failure
	Winner            int             // the attempt that answered; -1: the call failed
	PushedBack        bool            // all attempts were answered by pushback
	HasDelay          bool            // ScheduleHedges returned a hedge delay
	ReachedFirstDelay bool            // the call had no answer then
	Starts            []time.Duration // of the attempts, since the start of the call
}

// MaxHedges is the largest number of hedges of a call.
const MaxHedges = 3

// Run simulates all episodes, independent parts of the simulation, each with a new policy from newPolicy. It returns the
// calls in the order in which they ended, or those so far if ctx ends. If progress is not nil, Run calls it from time to
// time with the number of calls so far.
func (s Simulation) Run(ctx context.Context, seed uint64, newPolicy func() Policy, progress func(calls int)) []latency.Call {
	episodes := max(s.Episodes, 1)
	calls := make([]latency.Call, 0, episodes*s.Requests)
	for e := range episodes {
		r := &episodeState{Simulation: s, random: newEpisodeRandomSource(seed, e), calls: calls}
		r.Hosts = max(r.Hosts, 1)
		if s.SeparateClients {
			r.policy = &perClientPolicies{newPolicy: newPolicy}
		} else {
			r.policy = newPolicy()
		}
		r.events.list = make([]event, 0, 1024)
		if s.Queue != nil {
			r.stations = s.Queue.newStations()
		}
		if !r.processEvents(ctx, progress) {
			return r.calls
		}
		calls = r.calls
	}
	return calls
}

// An episodeState is the state of the simulation of one episode: a part of the requests, with a new policy and empty queues.
type episodeState struct {
	Simulation
	policy Policy
	random *RandomSource
	events eventQueue
	now    time.Duration

	activeCalls []activeCall // by slot
	freeSlots   []int32      // unused slots of activeCalls
	issued      int          // requests

	stations []station
	calls    []latency.Call // that have ended, also in earlier episodes
}

// An activeCall is the state of a simulated call that has not ended.
type activeCall struct {
	generation        uint32 // changes when another call gets the slot
	host              int16
	index             int32
	started           uint8 // attempts
	nextDelay         uint8 // index of the next delay
	denied            uint8 // hedges
	pushbacks         uint8
	reachedFirstDelay bool
	start             time.Duration
	delays            []time.Duration
	starts            [1 + MaxHedges]time.Duration
	servers           [1 + MaxHedges]*server  // that work on each attempt
	queues            [1 + MaxHedges]*station // in which each attempt waits
}

// A callID identifies a call by its slot in activeCalls and by a number that changes when another call gets the slot.
type callID struct {
	slot       int32
	generation uint32
}

// processEvents simulates the whole episode, or returns false if ctx ends first. progress may be nil, see Simulation.Run.
func (r *episodeState) processEvents(ctx context.Context, progress func(int)) bool {
	for range r.Workers {
		r.startCall()
	}
	if r.Workers == 0 {
		r.events.pushEvent(event{at: r.nextInterarrivalTime(), kind: requestArrived})
	}
	for n := 0; len(r.events.list) > 0; n++ {
		if n%65536 == 0 {
			if ctx.Err() != nil {
				return false
			}
			if progress != nil {
				progress(len(r.calls))
			}
		}
		e := r.events.popEvent()
		r.now = e.at
		switch e.kind {
		case requestArrived:
			r.startCall()
			if r.issued < r.Requests {
				r.events.pushEvent(event{at: r.now + r.nextInterarrivalTime(), kind: requestArrived})
			}
		case jobFinished:
			r.finishJob(e.server, e.call.generation)
		default:
			if r.activeCalls[e.call.slot].generation != e.call.generation {
				continue // the call has ended
			}
			switch e.kind {
			case hedgeDue:
				r.startHedge(e.call)
			case attemptAnswered:
				switch c := &r.activeCalls[e.call.slot]; {
				case !r.isPushback(c.index, e.n):
					r.endCall(e.call, int(e.n))
				case !r.recordPushback(e.call):
					r.endCall(e.call, -1)
				}
			case callTimedOut:
				r.endCall(e.call, -1)
			}
		}
	}
	if progress != nil {
		progress(len(r.calls))
	}
	return true
}

func (r *episodeState) nextInterarrivalTime() time.Duration {
	return r.random.InterarrivalTime(r.issued, r.Rate)
}

// startCall starts the next call of the episode, with its primary, unless all calls of the episode have started.
func (r *episodeState) startCall() {
	if r.issued >= r.Requests {
		return
	}
	var slot int32
	if n := len(r.freeSlots); n > 0 {
		slot, r.freeSlots = r.freeSlots[n-1], r.freeSlots[:n-1]
	} else {
		slot = int32(len(r.activeCalls))
		r.activeCalls = append(r.activeCalls, activeCall{})
	}
	c := &r.activeCalls[slot]
	*c = activeCall{generation: c.generation, index: int32(r.issued), start: r.now}
	if r.Hosts > 1 {
		c.host = int16(r.random.attemptRand(r.issued, -2).IntN(r.Hosts))
	}
	r.issued++
	id := callID{slot, c.generation}
	c.delays = r.policy.ScheduleHedges(r.now, int(c.host))
	if len(c.delays) > 0 {
		r.events.pushEvent(event{at: r.now + c.delays[0], kind: hedgeDue, call: id})
	}
	if r.Timeout > 0 {
		r.events.pushEvent(event{at: r.now + r.Timeout, kind: callTimedOut, call: id})
	}
	r.startAttempt(id)
}

// startHedge schedules the next hedge of the call id, and starts the hedge that is due if the policy admits it.
func (r *episodeState) startHedge(id callID) {
	c := &r.activeCalls[id.slot]
	index := int(c.nextDelay)
	c.nextDelay++
	c.reachedFirstDelay = true
	if int(c.nextDelay) < len(c.delays) {
		r.events.pushEvent(event{at: c.start + c.delays[c.nextDelay], kind: hedgeDue, call: id})
	}
	if !r.policy.AdmitHedge(r.now, int(c.host), index) {
		c.denied++
		return
	}
	r.startAttempt(id)
}

// startAttempt starts the next attempt of the call id: first the primary, and later each hedge.
func (r *episodeState) startAttempt(id callID) {
	c := &r.activeCalls[id.slot]
	n := c.started
	c.started++
	c.starts[n] = r.now - c.start
	if r.Queue != nil {
		r.dispatchJob(job{call: id, index: c.index, host: c.host, n: n})
		return
	}
	d := r.Model(r.random, Attempt{Request: int(c.index), N: int(n), Host: int(c.host), At: r.now})
	r.events.pushEvent(event{at: r.now + d, kind: attemptAnswered, call: id, n: n})
}

// endCall ends the call id. Attempt winner answered it, or none if winner is -1. In a closed loop, the next call starts.
func (r *episodeState) endCall(id callID, winner int) {
	c := &r.activeCalls[id.slot]
	result := CallResult{
		Latency: r.now - c.start, Winner: winner, PushedBack: c.pushbacks == c.started, HasDelay: len(c.delays) > 0, ReachedFirstDelay: c.reachedFirstDelay,
		Starts: c.starts[:c.started],
	}
	r.policy.RecordResult(r.now, int(c.host), result)
	r.calls = append(r.calls, latency.Call{
		Start: c.start, Latency: result.Latency, Index: c.index, Host: c.host, Winner: int8(winner), Hedges: c.started - 1, Denied: c.denied,
	})
	c.generation++
	r.freeSlots = append(r.freeSlots, id.slot)
	if r.Queue != nil {
		r.cancelLosers(c, winner)
	}
	if r.Workers > 0 {
		r.startCall()
	}
}
