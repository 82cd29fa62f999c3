package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario is the traffic and the server that all strategies meet.
type scenario struct {
	name  string
	about string
	world virtual.Simulation

	// span fixes how long an open loop lasts: more requests come faster, not longer.
	span time.Duration
	// parts of it that get a row of their own.
	parts []part
	// estimate is the option EstimatedRPS of those that have it, as a multiple
	// of the true rate; 0 leaves it alone.
	estimate float64
	// replays says that what each attempt takes is known beforehand, so that
	// the best static delays can be searched.
	replays bool
	// protocols are those over which it runs in real time, too.
	protocols []string
	// lab is the simulated network over which it runs in real time, and not in virtual time; nil: loopback sockets.
	lab *lab
	// only are the strategies that it is for; none: all.
	only []string
	// long says that it takes minutes: -scenario all leaves it out, and so does -quick.
	long bool
	// onRequest says that -scenario all leaves it out, too.
	onRequest bool
}

// A part of a scenario is the calls for which in reports true.
type part struct {
	name string
	in   func(latency.Call) bool

	from, to time.Duration // of a part that is a period of time
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// partBetween are the calls that began in [from, to).
func partBetween(name string, from, to time.Duration) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Start >= from && c.Start < to }, from: from, to: to}
}

// partOfFirst are the calls that were among the first n of their client.
func partOfFirst(name string, n int32) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Index < n }}
}

// referenceModel is the backend of the scenario reference: lognormal with mean 5 ms and
// deviation 2 ms, one attempt in twenty ten times slower.
func referenceModel() virtual.Model {
	return virtual.WithStragglers(virtual.LognormalLatency(5*ms, 2*ms), 0.05, 10)
}

// referenceMean is its mean latency.
const referenceMean = 7250 * time.Microsecond

// forever is the end of parts that last until their scenario ends.
const forever = time.Duration(1<<63 - 1)

// phaseChanges returns the times at which something changes by intent: where a part begins or ends.
func (sc scenario) phaseChanges() []time.Duration {
	var all []time.Duration
	for _, p := range sc.parts {
		for _, at := range []time.Duration{p.from, p.to} {
			if at > 0 && at < forever {
				all = append(all, at)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A size is the amount of traffic that the flags ask for. Zero values leave it to the scenario.
type size struct {
	requests int
	rps      float64
	quick    bool
}

// quickly is how much smaller scenarios are for -quick.
const quickly = 8

// sizedAbout returns the description of the scenario, and the load if the size changes it.
func (sc scenario) sizedAbout(s size) string {
	if w := sc.worldOfSize(s); w.Rate != sc.world.Rate {
		return fmt.Sprintf("%s; here with %s requests/s", sc.about, thousands(int(math.Round(w.Rate))))
	}
	return sc.about
}

// worldOfSize returns the scenario's world in the given size.
func (sc scenario) worldOfSize(s size) virtual.Simulation {
	w := sc.world
	if s.rps > 0 {
		w.Workers, w.Rate = 0, s.rps
	}
	if sc.span > 0 {
		w.Requests = int(w.Rate * sc.span.Seconds())
	}
	requests := s.requests
	if requests == 0 && s.quick {
		requests = max(w.Episodes, 1) * w.Requests / quickly
	}
	switch {
	case requests == 0:
	case w.Episodes > 1:
		w.Episodes = max(1, requests/w.Requests)
	case sc.span > 0 && w.Queue != nil:
		// Fewer requests would be another load.
	case sc.span > 0 && s.rps == 0:
		w.Rate, w.Requests = float64(requests)/sc.span.Seconds(), requests
	default:
		w.Requests = requests
	}
	return w
}
