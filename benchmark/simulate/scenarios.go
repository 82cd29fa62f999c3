package main

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// virtualScenarios returns the scenarios of the engine virtual, which simulates in virtual time. The scenarios with
// protocols also run in real time, over sockets.
func virtualScenarios() []scenario {
	reference := referenceModel()
	closed := func(m virtual.Model, requests int) virtual.Simulation {
		return virtual.Simulation{Workers: 20, Requests: requests, Model: m}
	}
	open := func(m virtual.Model, rate float64) virtual.Simulation {
		return virtual.Simulation{Rate: rate, Model: m}
	}
	queue := func(load float64, q virtual.Queue) virtual.Simulation {
		return virtual.Simulation{Rate: load * float64(q.Servers) / referenceMean.Seconds(), Requests: 400_000, Model: reference, Queue: &q}
	}
	tenHosts := func(m virtual.Model) virtual.Simulation {
		return virtual.Simulation{Hosts: 10, Rate: 1000, Model: m, Timeout: 5 * sec}
	}
	others := func(p part) part {
		in := p.in
		p.in = func(c latency.Call) bool { return c.Host > 0 && in(c) }
		return p
	}
	hung := []part{
		others(partBetween("before", 0, 30*sec)),
		others(partBetween("during", 30*sec, 60*sec)),
		others(partBetween("after", 60*sec, forever)),
		{name: "hung-host", in: func(c latency.Call) bool { return c.Host == 0 }},
	}
	outage := []part{partBetween("before", 0, 60*sec), partBetween("during", 60*sec, 90*sec), partBetween("after", 90*sec, forever)}
	trigger := virtual.Simulation{
		Rate: 0.75 * 20 / referenceMean.Seconds(), Queue: &virtual.Queue{Servers: 20, Shared: true},
		Model: virtual.DuringInterval(30*sec, 40*sec, virtual.ScaleLatency(reference, 2.5), reference),
	}
	cold := func(m virtual.Model) virtual.Simulation {
		return virtual.Simulation{Workers: 4, Requests: 1000, Episodes: 300, Model: m}
	}
	firsts := []part{partOfFirst("first-50", 50), partOfFirst("first-200", 200)}
	steady := []part{partBetween("steady", 10*sec, forever)}
	both := []string{"http", "grpc"}

	return append([]scenario{{
		name: "reference", about: "the benchmark that bhope/hedge publishes: 20 callers; attempts take 5 ms ± 2 ms (lognormal), and one in twenty takes ten times as long",
		world: closed(reference, 400_000), replays: true, protocols: both,
	}, {
		name: "pareto", about: "20 callers; a heavy tail: Pareto from 2.5 ms, shape 1.5",
		world: closed(virtual.ParetoLatency(2500*time.Microsecond, 1.5), 400_000), replays: true, protocols: both,
	}, {
		name: "bimodal", about: "20 callers; one request in five is a cache miss of 200 ms, and so are its hedges",
		world:   closed(virtual.MixByRequest(virtual.LognormalLatency(5*ms, 2*ms), virtual.LognormalLatency(200*ms, 25*ms), 0.20), 200_000),
		replays: true, protocols: both,
	}, {
		name: "replica", about: "20 callers; one of 16 replicas is ten times slower",
		world: closed(virtual.WithSlowReplica(virtual.LognormalLatency(5*ms, 2*ms), 16, 10), 400_000), replays: true, protocols: []string{"grpc"},
	}, {
		name: "correlated", about: "2,000 requests/s; ten replicas stop for 100 ms every 2 s, as for garbage collection",
		world: virtual.Simulation{Rate: 2000, Requests: 400_000, Model: virtual.WithPauses(virtual.LognormalLatency(5*ms, 2*ms), 10, 100*ms, 2*sec)}, replays: true,
	}, {
		name: "queue", about: "20 servers, 60 % loaded, with a queue each, that stop working on cancelled requests",
		world: queue(0.6, virtual.Queue{Servers: 20, Cancel: true}),
	}, {
		name: "queue-ignores-cancel", about: "20 servers, 80 % loaded, with a queue each, that finish cancelled requests: hedging does harm here",
		world: queue(0.8, virtual.Queue{Servers: 20}),
	}, {
		name: "metastable", about: "20 servers, 75 % loaded, with one queue, that finish cancelled requests and are 2.5 × slower for 10 s",
		world: trigger, span: 140 * sec,
		parts: []part{
			partBetween("before", 0, 30*sec), partBetween("during", 30*sec, 40*sec),
			partBetween("10-30s-after", 50*sec, 70*sec), partBetween("80s-after", 120*sec, forever),
		},
	}, {
		name: "drift", about: "2,000 requests/s; three times slower in the second of three minutes",
		world: open(virtual.DuringInterval(60*sec, 120*sec, virtual.ScaleLatency(reference, 3), reference), 2000), span: 180 * sec, replays: true,
		parts: []part{partBetween("before", 0, 60*sec), partBetween("during", 60*sec, 120*sec), partBetween("after", 120*sec, forever)},
	}, {
		name: "outage", about: "1,000 requests/s; everything is 50 × slower for 30 s",
		world: open(virtual.DuringInterval(60*sec, 90*sec, virtual.ScaleLatency(reference, 50), reference), 1000), span: 150 * sec, replays: true,
		parts: outage,
	}, {
		name: "hang", about: "1,000 requests/s; nothing answers for 30 s",
		world: open(virtual.DuringInterval(60*sec, 90*sec, virtual.HangUntil(reference, 90*sec), reference), 1000), span: 150 * sec,
		parts: outage,
	}, {
		name: "hosts", about: "1,000 requests/s to ten hosts, of which one hangs for 30 s; the parts show the other nine",
		world: tenHosts(virtual.OnHost(0, virtual.DuringInterval(30*sec, 60*sec, virtual.HangUntil(reference, forever/2), reference), reference)),
		span:  90 * sec, parts: hung,
	}, {
		name: "hosts-calm", about: "1,000 requests/s to ten hosts, of which none hangs",
		world: tenHosts(reference), span: 90 * sec, parts: hung[:3],
	}, {
		name: "uniform", about: "20 callers; every answer takes 20 ms ± 1 %",
		world: closed(virtual.ConstantLatency(20*ms, 0.01), 200_000), protocols: both,
	}, {
		name: "low", about: "one request/s to the reference backend",
		world: virtual.Simulation{Rate: 1, Requests: 100_000, Model: reference}, replays: true,
	}, {
		name: "cold", about: "300 fresh clients with 4 callers each, against the reference backend",
		world: cold(reference), parts: firsts,
	}, {
		name: "cold-slow", about: "300 fresh clients with 4 callers each, against a backend 40 × slower than the reference",
		world: cold(virtual.ScaleLatency(reference, 40)), parts: firsts,
	}, {
		name: "estimate-low", about: "2,000 requests/s to the reference backend; EstimatedRPS is 100 × too low",
		world: virtual.Simulation{Rate: 2000, Requests: 400_000, Model: reference}, estimate: 0.01, replays: true, parts: steady,
	}, {
		name: "estimate-high", about: "2,000 requests/s to the reference backend; EstimatedRPS is 100 × too high",
		world: virtual.Simulation{Rate: 2000, Requests: 400_000, Model: reference}, estimate: 100, replays: true, parts: steady,
	}}, slices.Concat(serviceScenarios(), longScenarios())...)
}

// allScenarios returns the scenarios of all engines, engine by engine. A scenario that several engines have occurs
// several times.
func allScenarios() (all []scenario) {
	for _, e := range newEngines() {
		all = append(all, e.profile().scenarios...)
	}
	return all
}

// findScenario returns the first scenario with the given name, which must exist.
func findScenario(name string) scenario {
	all := allScenarios()
	return all[slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })]
}

// labScenarios returns the scenarios in which real HTTP and gRPC clients and servers run over a simulated network in
// memory.
func labScenarios() []scenario {
	usual := virtual.LognormalLatency(5*ms, 2*ms)
	return slices.Concat(queueLabs(), replicaLabs(), []scenario{{
		name: "stream", about: "30 callers; the header comes at once and the first byte later, for 10 % of attempts by 200 ms; time to first byte",
		world: virtual.Simulation{Workers: 30, Requests: 6000, Model: virtual.WithDelays(usual, 0.10, 200*ms)}, protocols: []string{"http"},
		lab: &lab{
			strategies: []string{"none", "bhope", "hedge"},
			stream:     true,
		},
	}, {
		name: "frozen-h2", about: "4 callers, who give up after 300 ms; their HTTP/2 connection goes dead; 1 ms to the server and back",
		world:     virtual.Simulation{Workers: 4, Requests: 124, Episodes: 10, Model: usual, Timeout: 300 * ms},
		protocols: []string{"http", "grpc"}, parts: []part{partAfterFirst("frozen", 120)},
		lab: &lab{
			strategies: []string{"none", "static-10ms", "hedge"},
			rtts:       []time.Duration{ms}, tls: true, freeze: 120,
		},
	}, {
		name: "cold", about: "fresh clients, over TLS, 0.5 and 30 ms from a server that answers at once",
		world: virtual.Simulation{Workers: 1, Requests: 6, Episodes: 40, Model: virtual.ConstantLatency(0, 0)}, protocols: []string{"http"},
		parts: []part{
			partAtRTT("first-0.5ms", 0, partOfFirst("", 1)), partAtRTT("warm-0.5ms", 0, partAfterFirst("", 1)),
			partAtRTT("first-30ms", 1, partOfFirst("", 1)), partAtRTT("warm-30ms", 1, partAfterFirst("", 1)),
		},
		lab: &lab{
			strategies: []string{"none", "hedge"},
			rtts:       []time.Duration{ms / 2, 30 * ms}, tls: true,
		},
	}, {
		name: "replica", about: "200 requests/s; of three replicas, the one that a client dials stops for 100 ms every 2 s",
		world: virtual.Simulation{Rate: 200, Requests: 1200, Model: usual}, protocols: []string{"http"},
		lab: &lab{
			strategies: []string{"none", "hedge"},
			rtts:       []time.Duration{ms}, replicas: 3, pause: 100 * ms, period: 2 * sec,
		},
	}})
}

// queueLabs returns scenarios like the virtual one named queue-ignores-cancel, with real clients, servers and Limiters
// over a simulated network. Each server works on one request at a time, and finishes cancelled requests.
func queueLabs() []scenario {
	rate := 0.8 * 20 / referenceMean.Seconds()
	in := func(name, about string, tls bool, protocols ...string) scenario {
		return scenario{
			name: name, about: about, protocols: protocols, parts: []part{partAfterFirst("settled", 1000)},
			world: virtual.Simulation{Rate: rate, Requests: int(12 * rate), Model: referenceModel(), Queue: &virtual.Queue{Servers: 20}},
			lab:   &lab{strategies: []string{baseline, ours, limited}, tls: tls, replicas: 20, random: true},
		}
	}
	return []scenario{
		in("queue-ignores-cancel", "20 servers, 80 % loaded, that work on one request at a time and finish cancelled ones", false, "http", "grpc"),
		in("queue-ignores-cancel-h2", "20 servers, 80 % loaded, that work on one request at a time and finish cancelled ones, over HTTP/2", true, "http"),
	}
}

// replicaLabNames returns the names of the scenarios that replicaLabs returns.
func replicaLabNames() (names []string) {
	for _, sc := range replicaLabs() {
		names = append(names, sc.name)
	}
	return names
}

// replicaLabs returns scenarios with several replicas of a server over a simulated network. One replica stops for a
// while, is slow, or cannot be reached. They compare hedges to the replica of the first attempt with hedges to another
// replica.
func replicaLabs() []scenario {
	usual := virtual.ConstantLatency(5*ms, 0.4)
	both := []string{"http", "grpc"}
	in := func(name, about string, m virtual.Model, protocols []string, l lab) scenario {
		l.strategies, l.rtts, l.period = []string{baseline, ours}, []time.Duration{ms / 2}, sec
		return scenario{
			name: name, about: about + ", 10 callers", world: virtual.Simulation{Workers: 10, Requests: 10_000, Model: m}, protocols: protocols, lab: &l,
		}
	}
	const pause = 100 * ms
	slow := virtual.WithStragglers(usual, 0.01, 10)
	return []scenario{
		in("stop-2", "the first of two replicas stops for 100 ms each second", usual, both, lab{replicas: 2, pause: pause}),
		in("stop-3", "the first of three replicas stops for 100 ms each second", usual, both, lab{replicas: 3, pause: pause}),
		in("stop-10", "the first of ten replicas stops for 100 ms each second", usual, both, lab{replicas: 10, pause: pause}),
		in("stop-h2", "the first of three replicas stops for 100 ms each second, over HTTP/2", usual, both[:1], lab{replicas: 3, pause: pause, tls: true}),
		in("rotate", "the first of three replicas stops for 100 ms each second, and each lookup has another one first", usual, both[:1], lab{replicas: 3, pause: pause, rotates: true}),
		in("steady", "three replicas, none of which stops: 1 % of attempts are 10 × slower", slow, both[:1], lab{replicas: 3}),
		in("gone", "three replicas, of which the second cannot be reached: 1 % of attempts are 10 × slower", slow, both[:1], lab{replicas: 3, gone: true}),
	}
}

// partAfterFirst returns the part of a scenario with all calls of each client after the first n.
func partAfterFirst(name string, n int32) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Index >= n }}
}

// partAtRTT returns the calls of part p at one round-trip time of a lab, as a part with its own name. n is the index of
// the round-trip time in lab.rtts.
func partAtRTT(name string, n int16, p part) part {
	return part{name: name, in: func(c latency.Call) bool { return c.Host == n && p.in(c) }}
}
