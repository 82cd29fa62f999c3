package main

import (
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// virtualScenarios returns the scenarios of the engine virtual. The engines http and grpc also run a scenario, over
// sockets, if its field protocols names them.
func virtualScenarios() []scenario {
	reference := referenceModel()
	closed := func(m virtual.LatencyModel, requests int) virtual.Simulation {
		return virtual.Simulation{Workers: 20, Requests: requests, Model: m}
	}
	open := func(m virtual.LatencyModel, rate float64) virtual.Simulation {
		return virtual.Simulation{Rate: rate, Model: m}
	}
	queue := func(load float64, q virtual.QueueConfig) virtual.Simulation {
		return virtual.Simulation{Rate: load * float64(q.Servers) / referenceMeanLatency.Seconds(), Requests: 400_000, Model: reference, Queue: &q}
	}
	tenHosts := func(m virtual.LatencyModel) virtual.Simulation {
		return virtual.Simulation{Hosts: 10, Rate: 1000, Model: m, Timeout: 5 * sec}
	}
	others := func(p scenarioPart) scenarioPart {
		in := p.contains
		p.contains = func(c latency.Call) bool { return c.Host > 0 && in(c) }
		return p
	}
	hung := []scenarioPart{
		others(newPeriodPart("before", 0, 30*sec)),
		others(newPeriodPart("during", 30*sec, 60*sec)),
		others(newPeriodPart("after", 60*sec, forever)),
		{name: "hung-host", contains: func(c latency.Call) bool { return c.Host == 0 }},
	}
	outage := []scenarioPart{newPeriodPart("before", 0, 60*sec), newPeriodPart("during", 60*sec, 90*sec), newPeriodPart("after", 90*sec, forever)}
	trigger := virtual.Simulation{
		Rate: 0.75 * 20 / referenceMeanLatency.Seconds(), Queue: &virtual.QueueConfig{Servers: 20, Shared: true},
		Model: virtual.SwitchByTime(30*sec, 40*sec, virtual.ScaleLatency(reference, 2.5), reference),
	}
	steady, both := []scenarioPart{newPeriodPart("steady", 10*sec, forever)}, []string{"http", "grpc"}

	return append([]scenario{{
		name: "reference", description: "the benchmark that bhope/hedge publishes: 20 callers; attempts take 5 ms ± 2 ms (lognormal), and one in twenty takes ten times as long",
		simulation: closed(reference, 400_000), replayable: true, protocols: both,
	}, {
		name: "pareto", description: "20 callers; a heavy tail: Pareto from 2.5 ms, shape 1.5",
		simulation: closed(virtual.ParetoLatency(2500*time.Microsecond, 1.5), 400_000), replayable: true, protocols: both,
	}, {
		name: "bimodal", description: "20 callers; one request in five is a cache miss of 200 ms, and so are its hedges",
		simulation: closed(virtual.CacheLatency(virtual.LognormalLatency(5*ms, 2*ms), virtual.LognormalLatency(200*ms, 25*ms), 0.20), 200_000),
		replayable: true, protocols: both,
	}, {
		name: "replica", description: "20 callers; one of 16 replicas is ten times slower",
		simulation: closed(virtual.OneSlowReplica(virtual.LognormalLatency(5*ms, 2*ms), 16, 10), 400_000), replayable: true, protocols: []string{"grpc"},
	}, {
		name: "queue", description: "20 servers, 60 % loaded, with a queue each, that stop working on cancelled requests",
		simulation: queue(0.6, virtual.QueueConfig{Servers: 20, Cancel: true}),
	}, {
		name: "queue-ignores-cancel", description: "20 servers, 80 % loaded, with a queue each, that finish cancelled requests: hedging does harm here",
		simulation: queue(0.8, virtual.QueueConfig{Servers: 20}),
	}, {
		name: "metastable", description: "20 servers, 75 % loaded, with one queue, that finish cancelled requests and are 2.5 × slower for 10 s",
		simulation: trigger, duration: 140 * sec,
		parts: []scenarioPart{
			newPeriodPart("before", 0, 30*sec), newPeriodPart("during", 30*sec, 40*sec),
			newPeriodPart("10-30s-after", 50*sec, 70*sec), newPeriodPart("80s-after", 120*sec, forever),
		},
	}, {
		name: "drift", description: "2,000 requests/s; three times slower in the second of three minutes",
		simulation: open(virtual.SwitchByTime(60*sec, 120*sec, virtual.ScaleLatency(reference, 3), reference), 2000), duration: 180 * sec, replayable: true,
		parts: []scenarioPart{newPeriodPart("before", 0, 60*sec), newPeriodPart("during", 60*sec, 120*sec), newPeriodPart("after", 120*sec, forever)},
	}, {
		name: "outage", description: "1,000 requests/s; everything is 50 × slower for 30 s",
		simulation: open(virtual.SwitchByTime(60*sec, 90*sec, virtual.ScaleLatency(reference, 50), reference), 1000), duration: 150 * sec, replayable: true,
		parts: outage,
	}, {
		name: "hang", description: "1,000 requests/s; nothing answers for 30 s",
		simulation: open(virtual.SwitchByTime(60*sec, 90*sec, virtual.HangUntil(reference, 90*sec), reference), 1000), duration: 150 * sec,
		parts: outage,
	}, {
		name: "hosts", description: "1,000 requests/s to ten hosts, of which one hangs for 30 s; the parts show the other nine",
		simulation: tenHosts(virtual.SwitchByHost(0, virtual.SwitchByTime(30*sec, 60*sec, virtual.HangUntil(reference, forever/2), reference), reference)),
		duration:   90 * sec, parts: hung,
	}, {
		name: "hosts-calm", description: "1,000 requests/s to ten hosts, of which none hangs",
		simulation: tenHosts(reference), duration: 90 * sec, parts: hung[:3],
	}, {
		name: "uniform", description: "20 callers; every answer takes 20 ms ± 1 %",
		simulation: closed(virtual.UniformLatency(20*ms, 0.01), 200_000), protocols: both,
	}, {
		name: "low", description: "one request/s to the reference backend",
		simulation: virtual.Simulation{Rate: 1, Requests: 100_000, Model: reference}, replayable: true,
	}, {
		name: "cold", description: "300 fresh clients with 4 callers each, against the reference backend",
		simulation: virtual.Simulation{Workers: 4, Requests: 1000, Episodes: 300, Model: reference}, parts: []scenarioPart{newFirstCallsPart("first-50", 50), newFirstCallsPart("first-200", 200)},
	}, {
		name: "estimate-low", description: "2,000 requests/s to the reference backend; EstimatedRPS is 100 × too low",
		simulation: virtual.Simulation{Rate: 2000, Requests: 400_000, Model: reference}, rateEstimateFactor: 0.01, replayable: true, parts: steady,
	}, {
		name: "estimate-high", description: "2,000 requests/s to the reference backend; EstimatedRPS is 100 × too high",
		simulation: virtual.Simulation{Rate: 2000, Requests: 400_000, Model: reference}, rateEstimateFactor: 100, replayable: true, parts: steady,
	}}, slices.Concat(serviceScenarios(), longScenarios())...)
}

// networkScenarios returns the scenarios of real clients and servers over a simulated network in memory.
func networkScenarios() []scenario {
	usual := virtual.LognormalLatency(5*ms, 2*ms)
	return slices.Concat(queueScenarios(), replicaScenarios(), []scenario{{
		name: "stream", description: "30 callers; the header comes at once and the first byte later, for 10 % of attempts by 200 ms; time to first byte",
		simulation: virtual.Simulation{Workers: 30, Requests: 6000, Model: virtual.AddDelays(usual, 0.10, 200*ms)}, protocols: []string{"http"},
		allowedStrategies: []string{"none", "bhope", "hedge"}, network: &networkConfig{stream: true},
	}, {
		name: "frozen-h2", description: "4 callers, who give up after 300 ms; their HTTP/2 connection goes dead; 1 ms to the server and back",
		simulation: virtual.Simulation{Workers: 4, Requests: 124, Episodes: 10, Model: usual, Timeout: 300 * ms},
		protocols:  []string{"http", "grpc"}, parts: []scenarioPart{newLaterCallsPart("frozen", 120)},
		allowedStrategies: []string{"none", "hedgedhttp-10ms", "hedge"}, network: &networkConfig{rtts: []time.Duration{ms}, tls: true, freeze: 120},
	}, {
		name: "cold", description: "fresh clients, over TLS, 0.5 and 30 ms from a server that answers at once",
		simulation: virtual.Simulation{Workers: 1, Requests: 6, Episodes: 40, Model: virtual.UniformLatency(0, 0)}, protocols: []string{"http"},
		parts: []scenarioPart{
			newRTTPart("first-0.5ms", 0, newFirstCallsPart("", 1)), newRTTPart("warm-0.5ms", 0, newLaterCallsPart("", 1)),
			newRTTPart("first-30ms", 1, newFirstCallsPart("", 1)), newRTTPart("warm-30ms", 1, newLaterCallsPart("", 1)),
		},
		allowedStrategies: []string{"none", "hedge"}, network: &networkConfig{rtts: []time.Duration{ms / 2, 30 * ms}, tls: true},
	}, {
		name: "replica", description: "200 requests/s; of three replicas, the one that a client dials stops for 100 ms every 2 s",
		simulation: virtual.Simulation{Rate: 200, Requests: 1200, Model: usual}, protocols: []string{"http"},
		allowedStrategies: []string{"none", "hedge"}, network: &networkConfig{rtts: []time.Duration{ms}, replicas: 3, pause: 100 * ms, pausePeriod: 2 * sec},
	}})
}

// queueScenarios returns scenarios over a simulated network, in which cancelled requests still occupy the servers, as
// in the virtual scenario queue-ignores-cancel.
func queueScenarios() []scenario {
	rate := 0.8 * 20 / referenceMeanLatency.Seconds()
	in := func(name, about string, tls bool, protocols ...string) scenario {
		return scenario{
			name: name, description: about, protocols: protocols, parts: []scenarioPart{newLaterCallsPart("settled", 1000)},
			simulation:        virtual.Simulation{Rate: rate, Requests: int(12 * rate), Model: referenceModel(), Queue: &virtual.QueueConfig{Servers: 20}},
			allowedStrategies: []string{baselineStrategy, libraryStrategy, limitedStrategy}, network: &networkConfig{tls: tls, replicas: 20, randomReplica: true},
		}
	}
	return []scenario{
		in("queue-ignores-cancel", "20 servers, 80 % loaded, that work on one request at a time and finish cancelled ones", false, "http", "grpc"),
		in("queue-ignores-cancel-h2", "20 servers, 80 % loaded, that work on one request at a time and finish cancelled ones, over HTTP/2", true, "http"),
	}
}

func replicaScenarioNames() []string { return scenarioNames(replicaScenarios()) }

// replicaScenarios returns scenarios with several replicas, one of which pauses, is slow, or cannot be reached.
func replicaScenarios() []scenario {
	usual, both := virtual.UniformLatency(5*ms, 0.4), []string{"http", "grpc"}
	in := func(name, about string, m virtual.LatencyModel, protocols []string, l networkConfig) scenario {
		l.rtts, l.pausePeriod = []time.Duration{ms / 2}, sec
		return scenario{
			name: name, description: about + ", 10 callers", simulation: virtual.Simulation{Workers: 10, Requests: 10_000, Model: m}, protocols: protocols,
			allowedStrategies: []string{baselineStrategy, libraryStrategy}, network: &l,
		}
	}
	const pause = 100 * ms
	slow := virtual.AddStragglers(usual, 0.01, 10)
	return []scenario{
		in("stop-2", "the first of two replicas stops for 100 ms each second", usual, both, networkConfig{replicas: 2, pause: pause}),
		in("stop-3", "the first of three replicas stops for 100 ms each second", usual, both, networkConfig{replicas: 3, pause: pause}),
		in("stop-10", "the first of ten replicas stops for 100 ms each second", usual, both, networkConfig{replicas: 10, pause: pause}),
		in("stop-h2", "the first of three replicas stops for 100 ms each second, over HTTP/2", usual, both[:1], networkConfig{replicas: 3, pause: pause, tls: true}),
		in("rotate", "the first of three replicas stops for 100 ms each second, and each lookup has another one first", usual, both[:1], networkConfig{replicas: 3, pause: pause, rotatesReplicas: true}),
		in("steady", "three replicas, none of which stops: 1 % of attempts are 10 × slower", slow, both[:1], networkConfig{replicas: 3}),
		in("gone", "three replicas, of which the second cannot be reached: 1 % of attempts are 10 × slower", slow, both[:1], networkConfig{replicas: 3, unreachable: true}),
	}
}

// newLaterCallsPart returns the part with all calls of each client except the first n.
func newLaterCallsPart(name string, n int32) scenarioPart {
	return scenarioPart{name: name, contains: func(c latency.Call) bool { return c.Index >= n }}
}

// newRTTPart returns a part with the given name: the calls of part p whose network had the n-th of networkConfig.rtts.
func newRTTPart(name string, n int16, p scenarioPart) scenarioPart {
	return scenarioPart{name: name, contains: func(c latency.Call) bool { return c.Host == n && p.contains(c) }}
}

// The clients of a service that has many, each with few requests.
const (
	clientCount = 1000
	clientRate  = 2.2 // requests per second of each
)

// serviceScenarios returns scenarios in which a service has 1,000 clients, or answers some requests by status 503, by
// which it asks clients for less load.
func serviceScenarios() []scenario {
	fleet := virtual.Simulation{SeparateClients: true, Hosts: clientCount, Rate: clientCount * clientRate, Requests: 300_000, Model: referenceModel()}
	ignoring := fleet
	ignoring.Queue, ignoring.Rate = &virtual.QueueConfig{Servers: 20}, 0.8*20/referenceMeanLatency.Seconds()

	// One call in 33 is slow, and so are few enough to be hedged well before.
	pushed := virtual.Simulation{Rate: 1000, Requests: 400_000, Model: virtual.AddDelays(virtual.LognormalLatency(5*ms, 2*ms), 0.03, 295*ms)}
	calm := pushed
	pushed.PushbackShare = 0.001

	few := []string{baselineStrategy, "bhope-tuned", libraryStrategy}
	return []scenario{{
		name: "many-clients", description: "1,000 independent clients, 2.2 requests/s each, to the reference backend",
		simulation: fleet, allowedStrategies: few,
	}, {
		name: "many-clients-ignores-cancel", description: "1,000 independent clients; 20 servers, 80 % loaded, with a queue each, that finish cancelled requests",
		simulation: ignoring, allowedStrategies: append(few[:len(few):len(few)], limitedStrategy),
	}, {
		name: "pushback", description: "1,000 requests/s; 3 % of attempts take 300 ms, and 0.1 % are answered by 503",
		simulation: pushed, allowedStrategies: few,
	}, {
		name: "pushback-none", description: "1,000 requests/s; 3 % of attempts take 300 ms, and none is answered by 503",
		simulation: calm, allowedStrategies: few,
	}}
}

// longScenarios returns scenarios of 40 minutes in virtual time, for strategies with an audit (hedge.WithAudit). An
// audit is an experiment of the client: it pauses hedging in some time slots, and compares the latencies of slots with
// and without hedging. Its verdict disables hedging that harms.
//
// Each scenario has two parts of equal length: learning, in which audits reach their verdicts, and settled.
func longScenarios() []scenario {
	const last = 40 * time.Minute
	rate := 0.8 * 20 / referenceMeanLatency.Seconds()
	simulation := func(q *virtual.QueueConfig) virtual.Simulation {
		return virtual.Simulation{Rate: rate, Requests: int(rate * last.Seconds()), Model: referenceModel(), Queue: q}
	}
	long := func(name, about string, w virtual.Simulation) scenario {
		return scenario{
			name: name, description: about, simulation: w, long: true, allowedStrategies: []string{baselineStrategy, libraryStrategy, auditedStrategy, limitedStrategy},
			parts: []scenarioPart{newPeriodPart("learning", 0, last/2), newPeriodPart("settled", last/2, forever)},
		}
	}
	ignoring := simulation(&virtual.QueueConfig{Servers: 20})
	many := ignoring
	many.SeparateClients, many.Hosts = true, clientCount
	double := ignoring
	double.Model = virtual.ScaleHedgeLatency(referenceModel(), 2)
	return []scenario{
		long("long-queue-ignores-cancel", "queue-ignores-cancel for 40 minutes", ignoring),
		long("long-many-clients-ignores-cancel", "many-clients-ignores-cancel for 40 minutes", many),
		long("long-queue-ignores-cancel-double", "queue-ignores-cancel for 40 minutes, where a hedge takes twice as long", double),
		long("long-queue", "queue for 40 minutes, 80 % loaded", simulation(&virtual.QueueConfig{Servers: 20, Cancel: true})),
		long("long-reference", "2,200 requests/s to the reference backend for 40 minutes", simulation(nil)),
	}
}

func longScenarioNames() []string { return scenarioNames(longScenarios()) }
