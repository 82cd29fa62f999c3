package main

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario is a condition in which strategies are compared: the traffic, and the latency and faults of the server.
type scenario struct {
	name        string
	description string
	simulation  virtual.Simulation

	// duration fixes how long an open loop lasts: more requests come faster, not longer.
	duration time.Duration
	// parts are the subsets of the calls that have table rows of their own.
	parts []scenarioPart
	// rateEstimateFactor is the option EstimatedRPS, as a multiple of the true rate. 0 means the default.
	rateEstimateFactor float64

	replayable        bool           // latencies do not depend on the policy, so that best static delays can be computed
	protocols         []string       // over which the scenario also runs in real time
	network           *networkConfig // simulated network over which the scenario runs in real time only; nil: loopback
	allowedStrategies []string       // besides strategies that name the scenario; nil: all
	long              bool           // takes minutes; -scenario all and -quick leave it out
	excludedFromAll   bool           // -scenario all leaves it out
}

func scenarioNames(all []scenario) (names []string) {
	for _, sc := range all {
		names = append(names, sc.name)
	}
	return names
}

// A scenarioPart is a subset of the scenario's calls that has table rows of its own, such as a period of time.
type scenarioPart struct {
	name     string
	contains func(latency.Call) bool

	from, to time.Duration // of a part that is a period of time
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// newPeriodPart returns the part of a scenario with the calls that start in the period [from, to), measured from the
// start of their client.
func newPeriodPart(name string, from, to time.Duration) scenarioPart {
	return scenarioPart{name: name, contains: func(c latency.Call) bool { return c.Start >= from && c.Start < to }, from: from, to: to}
}

// newFirstCallsPart returns the part of a scenario with the first n calls of each client.
func newFirstCallsPart(name string, n int32) scenarioPart {
	return scenarioPart{name: name, contains: func(c latency.Call) bool { return c.Index < n }}
}

// referenceModel returns the latency model of the scenario named reference. Latencies are lognormal with mean 5 ms and
// standard deviation 2 ms, and one attempt in twenty takes ten times as long.
func referenceModel() virtual.LatencyModel {
	return virtual.AddStragglers(virtual.LognormalLatency(5*ms, 2*ms), 0.05, 10)
}

// referenceMeanLatency is the mean latency of the scenario named reference.
const referenceMeanLatency = 7250 * time.Microsecond

// forever is the end of parts that last until their scenario ends.
const forever = time.Duration(1<<63 - 1)

// partBoundaries returns the times at which a period with table rows of its own (a scenarioPart) begins or ends.
// Latencies may change there on purpose, so error margins ignore these changes.
func (sc scenario) partBoundaries() (all []time.Duration) {
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

// The trafficFlags are the values of -requests, -rps and -quick, which means fewer requests unless -requests is set. A
// zero value leaves the traffic to the scenario.
type trafficFlags struct {
	requests int
	rps      float64
	quick    bool
}

// quickDivisor divides the number of requests with -quick.
const quickDivisor = 8

// adjustedSimulation returns the traffic and the server of the scenario. The values of -requests, -rps and -quick in s,
// if set, replace the rate and the number of requests.
func (sc scenario) adjustedSimulation(s trafficFlags) virtual.Simulation {
	w := sc.simulation
	if s.rps > 0 {
		w.Workers, w.Rate = 0, s.rps
	}
	if sc.duration > 0 {
		w.Requests = int(w.Rate * sc.duration.Seconds())
	}
	requests := s.requests
	if requests == 0 && s.quick {
		requests = max(w.Episodes, 1) * w.Requests / quickDivisor
	}
	switch {
	case requests == 0:
	case w.Episodes > 1:
		w.Episodes = max(1, requests/w.Requests)
	case sc.duration > 0 && w.Queue != nil:
		// Fewer requests would be another load.
	case sc.duration > 0 && s.rps == 0:
		w.Rate, w.Requests = float64(requests)/sc.duration.Seconds(), requests
	default:
		w.Requests = requests
	}
	return w
}
