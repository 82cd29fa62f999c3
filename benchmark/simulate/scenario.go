package main

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario is what the contenders are put through.
type scenario struct {
	name  string
	about string
	world virtual.World

	// span fixes how long an open loop lasts: more requests come faster, not longer.
	span time.Duration
	// parts of it that get a row of their own.
	parts []part
	// estimate is the option EstimatedRPS of those that have it, as a multiple
	// of the true rate; 0 leaves it alone.
	estimate float64
	// replays says that what each attempt takes is known beforehand, so that
	// the static oracles can be searched.
	replays bool
	// sockets are the engines with real sockets that run it too.
	sockets []string
	// lab says that these engines run it over a simulated network, and no other does.
	lab *lab
	// only are the strategies that it is for; none: all.
	only []string
	// long says that it takes minutes: -scenario all leaves it out, and so does -quick.
	long bool
	// dns and recursor say that only the engine of that name runs it.
	dns, recursor bool
}

// A part of a scenario is the calls for which in reports true.
type part struct {
	name string
	in   func(virtual.Call) bool

	from, to time.Duration // of a part that is a period of time
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// within are the calls that began in [from, to).
func within(name string, from, to time.Duration) part {
	return part{name: name, in: func(c virtual.Call) bool { return c.Start >= from && c.Start < to }, from: from, to: to}
}

// first are the calls that were among the first n of their client.
func first(name string, n int32) part {
	return part{name: name, in: func(c virtual.Call) bool { return c.Index < n }}
}

// seedModel is the published benchmark's backend: lognormal with mean 5 ms and
// deviation 2 ms, one attempt in twenty ten times slower.
func seedModel() virtual.Model {
	return virtual.Stragglers(virtual.Lognormal(5*ms, 2*ms), 0.05, 10)
}

// seedMean is what it takes on average.
const seedMean = 7250 * time.Microsecond

// forever is the end of parts that last until their scenario ends.
const forever = time.Duration(1<<63 - 1)

func scenarios() []scenario {
	seed := seedModel()
	closed := func(m virtual.Model, requests int) virtual.World {
		return virtual.World{Workers: 20, Requests: requests, Model: m}
	}
	open := func(m virtual.Model, rate float64) virtual.World {
		return virtual.World{Rate: rate, Model: m}
	}
	queue := func(load float64, q virtual.Queue) virtual.World {
		return virtual.World{Rate: load * float64(q.Servers) / seedMean.Seconds(), Requests: 400_000, Model: seed, Queue: &q}
	}
	tenHosts := func(m virtual.Model) virtual.World {
		return virtual.World{Hosts: 10, Rate: 1000, Model: m, Timeout: 5 * sec}
	}
	others := func(p part) part {
		in := p.in
		p.in = func(c virtual.Call) bool { return c.Host > 0 && in(c) }
		return p
	}
	hung := []part{
		others(within("before", 0, 30*sec)),
		others(within("during", 30*sec, 60*sec)),
		others(within("after", 60*sec, forever)),
		{name: "hung-host", in: func(c virtual.Call) bool { return c.Host == 0 }},
	}
	outage := []part{within("before", 0, 60*sec), within("during", 60*sec, 90*sec), within("after", 90*sec, forever)}
	trigger := virtual.World{
		Rate: 0.75 * 20 / seedMean.Seconds(), Queue: &virtual.Queue{Servers: 20, Shared: true},
		Model: virtual.Between(30*sec, 40*sec, virtual.Times(seed, 2.5), seed),
	}
	cold := func(m virtual.Model) virtual.World {
		return virtual.World{Workers: 4, Requests: 1000, Episodes: 300, Model: m}
	}
	firsts := []part{first("first-50", 50), first("first-200", 200)}
	steady := []part{within("steady", 10*sec, forever)}
	both := []string{"http", "grpc"}

	return append([]scenario{{
		name: "seed", about: "the published benchmark: lognormal 5 ms ± 2 ms, 5 % of attempts 10 × slower, 20 callers",
		world: closed(seed, 400_000), replays: true, sockets: both,
	}, {
		name: "pareto", about: "a heavy tail: Pareto from 2.5 ms, shape 1.5, 20 callers",
		world: closed(virtual.Pareto(2500*time.Microsecond, 1.5), 400_000), replays: true, sockets: both,
	}, {
		name: "bimodal", about: "20 % of requests are cache misses of 200 ms, and so are their hedges, 20 callers",
		world:   closed(virtual.Inherent(virtual.Lognormal(5*ms, 2*ms), virtual.Lognormal(200*ms, 25*ms), 0.20), 200_000),
		replays: true, sockets: both,
	}, {
		name: "replica", about: "one of 16 replicas is 10 × slower, 20 callers",
		world: closed(virtual.Replicas(virtual.Lognormal(5*ms, 2*ms), 16, 10), 400_000), replays: true, sockets: []string{"grpc"},
	}, {
		name: "correlated", about: "ten replicas stop for 100 ms every 2 s, as for garbage collection, 2,000 requests/s",
		world: virtual.World{Rate: 2000, Requests: 400_000, Model: virtual.Pauses(virtual.Lognormal(5*ms, 2*ms), 10, 100*ms, 2*sec)}, replays: true,
	}, {
		name: "queue", about: "20 servers with a queue each, 60 % loaded, which stop working on cancelled requests",
		world: queue(0.6, virtual.Queue{Servers: 20, Cancel: true}),
	}, {
		name: "queue-deaf", about: "the same, 80 % loaded, and the servers finish cancelled requests: hedging hurts here",
		world: queue(0.8, virtual.Queue{Servers: 20}),
	}, {
		name: "metastable", about: "20 servers with one queue, 75 % loaded, which finish cancelled requests, 2.5 × slower for 10 s",
		world: trigger, span: 140 * sec,
		parts: []part{
			within("before", 0, 30*sec), within("during", 30*sec, 40*sec),
			within("10-30s-after", 50*sec, 70*sec), within("80s-after", 120*sec, forever),
		},
	}, {
		name: "drift", about: "three times slower in the second of three minutes, 2,000 requests/s",
		world: open(virtual.Between(60*sec, 120*sec, virtual.Times(seed, 3), seed), 2000), span: 180 * sec, replays: true,
		parts: []part{within("before", 0, 60*sec), within("during", 60*sec, 120*sec), within("after", 120*sec, forever)},
	}, {
		name: "outage", about: "everything 50 × slower for 30 s, 1,000 requests/s",
		world: open(virtual.Between(60*sec, 90*sec, virtual.Times(seed, 50), seed), 1000), span: 150 * sec, replays: true,
		parts: outage,
	}, {
		name: "hang", about: "nothing answers for 30 s, 1,000 requests/s",
		world: open(virtual.Between(60*sec, 90*sec, virtual.Hang(seed, 90*sec), seed), 1000), span: 150 * sec,
		parts: outage,
	}, {
		name: "hosts", about: "one of ten hosts hangs for 30 s; the parts show the other nine, 1,000 requests/s",
		world: tenHosts(virtual.OnHost(0, virtual.Between(30*sec, 60*sec, virtual.Hang(seed, forever/2), seed), seed)),
		span:  90 * sec, parts: hung,
	}, {
		name: "hosts-calm", about: "the same ten hosts when none hangs",
		world: tenHosts(seed), span: 90 * sec, parts: hung[:3],
	}, {
		name: "uniform", about: "uniformly slow: every answer takes 20 ms ± 1 %, 20 callers",
		world: closed(virtual.Constant(20*ms, 0.01), 200_000), sockets: both,
	}, {
		name: "low", about: "the published benchmark's backend at one request/s",
		world: virtual.World{Rate: 1, Requests: 100_000, Model: seed}, replays: true,
	}, {
		name: "cold", about: "300 fresh clients, 4 callers each, against the published benchmark's backend",
		world: cold(seed), parts: firsts,
	}, {
		name: "cold-slow", about: "the same, against a backend 40 × slower",
		world: cold(virtual.Times(seed, 40)), parts: firsts,
	}, {
		name: "estimate-low", about: "the published benchmark's backend at 2,000 requests/s, with EstimatedRPS 100 × too low",
		world: virtual.World{Rate: 2000, Requests: 400_000, Model: seed}, estimate: 0.01, replays: true, parts: steady,
	}, {
		name: "estimate-high", about: "the same, with EstimatedRPS 100 × too high",
		world: virtual.World{Rate: 2000, Requests: 400_000, Model: seed}, estimate: 100, replays: true, parts: steady,
	}}, slices.Concat(serviceScenarios(), longScenarios(), labScenarios(), dnsScenarios, recursorScenarios)...)
}

// changes returns the times at which something changes by intent: where a part begins or ends.
func (sc scenario) changes() []time.Duration {
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

// scenarioOf returns the first scenario of that name.
func scenarioOf(name string) scenario {
	all := scenarios()
	return all[slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })]
}

// A size is what the flags say about how much there is to do; 0 leaves it to the scenario.
type size struct {
	requests int
	rps      float64
	quick    bool
}

// quickly is how much smaller scenarios are for -quick.
const quickly = 8

// sized returns the scenario's world in the given size.
func (sc scenario) sized(s size) virtual.World {
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
