package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario is the situation in which all strategies are compared: the traffic of the clients, and the latency and
// faults of the server. It names the strategies and protocols that it is for, and its parts.
type scenario struct {
	name       string
	about      string
	simulation virtual.Simulation

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
	// network is the simulated network over which it runs in real time, and not in virtual time; nil: loopback sockets.
	network *network
	// only are the strategies that it is for, besides those that are for it alone; nil: all.
	only []string
	// long says that it takes minutes: -scenario all leaves it out, and so does -quick.
	long bool
	// onRequest says that -scenario all leaves it out, too.
	onRequest bool
}

// scenariosOfLab returns the scenarios of a lab, a package that compares contenders, for an engine. prefix begins their
// descriptions.
func scenariosOfLab(prefix string, all []lab.Scenario) (scenarios []scenario) {
	for _, s := range all {
		scenarios = append(scenarios, scenario{name: s.Name, about: prefix + s.Description})
	}
	return scenarios
}

func scenarioNames(all []scenario) (names []string) {
	for _, sc := range all {
		names = append(names, sc.name)
	}
	return names
}

// A part of a scenario is a subset of its calls that has table rows of its own. The function in returns true for the
// calls of the part, which may be a period of time.
type part struct {
	name string
	in   func(latency.Call) bool

	from, to time.Duration // of a part that is a period of time
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// partBetween returns the part of a scenario with the calls that start in the period [from, to), since the start of the
// episode.
func partBetween(name string, from, to time.Duration) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Start >= from && c.Start < to }, from: from, to: to}
}

// partOfFirst returns the part of a scenario with the first n calls of each client.
func partOfFirst(name string, n int32) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Index < n }}
}

// referenceModel returns the latency model of the scenario named reference. Latencies are lognormal with mean 5 ms and
// standard deviation 2 ms, and one attempt in twenty takes ten times as long.
func referenceModel() virtual.Model {
	return virtual.WithStragglers(virtual.LognormalLatency(5*ms, 2*ms), 0.05, 10)
}

// referenceMean is the mean latency of the scenario named reference.
const referenceMean = 7250 * time.Microsecond

// forever is the end of parts that last until their scenario ends.
const forever = time.Duration(1<<63 - 1)

// phaseChanges returns the times at which a part of the scenario begins or ends, sorted. Latencies may change there on
// purpose, which is no uncertainty of the measurement.
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

// A size is the amount of traffic that the flags -requests, -rps and -quick ask for. Zero values leave it to the
// scenario.
type size struct {
	requests int
	rps      float64
	quick    bool
}

// quickDivisor divides the number of requests with -quick.
const quickDivisor = 8

// sizedAbout returns the description of the scenario. It adds the number of requests per second if s, the size that the
// flags ask for, changes it.
func (sc scenario) sizedAbout(s size) string {
	if w := sc.simulationOfSize(s); w.Rate != sc.simulation.Rate {
		return fmt.Sprintf("%s; here with %s requests/s", sc.about, formatThousands(int(math.Round(w.Rate))))
	}
	return sc.about
}

// simulationOfSize returns the scenario's traffic and server as a simulation. s, the size that the flags ask for,
// determines the rate and the number of requests.
func (sc scenario) simulationOfSize(s size) virtual.Simulation {
	w := sc.simulation
	if s.rps > 0 {
		w.Workers, w.Rate = 0, s.rps
	}
	if sc.span > 0 {
		w.Requests = int(w.Rate * sc.span.Seconds())
	}
	requests := s.requests
	if requests == 0 && s.quick {
		requests = max(w.Episodes, 1) * w.Requests / quickDivisor
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
