package main

import (
	"math"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// The clients of a service that has many, each with few requests.
const (
	clients    = 1000
	clientRate = 2.2 // requests per second of each
)

// serviceScenarios returns scenarios in virtual time with many clients, with servers that push back by status 503, and
// with servers that answer by status 404.
func serviceScenarios() []scenario {
	fleet := virtual.Simulation{SeparateClients: true, Hosts: clients, Rate: clients * clientRate, Requests: 300_000, Model: referenceModel()}
	ignoring := fleet
	ignoring.Queue = &virtual.Queue{Servers: 20}
	ignoring.Rate = 0.8 * 20 / referenceMean.Seconds()

	// One call in 33 is slow, and so are few enough to be hedged well before.
	pushed := virtual.Simulation{Rate: 1000, Requests: 400_000, Model: virtual.WithDelays(virtual.LognormalLatency(5*ms, 2*ms), 0.03, 295*ms)}
	calm := pushed
	pushed.PushbackShare = 0.001

	absent := virtual.Simulation{Workers: 20, Requests: 400_000, Model: referenceModel(), NotFoundShare: 0.3}
	ends := absent
	ends.NotFoundEndsCall = true

	few := []string{baseline, "bhope-tuned", ours}
	return []scenario{{
		name: "many-clients", about: "1,000 independent clients, 2.2 requests/s each, to the reference backend",
		world: fleet, only: few,
	}, {
		name: "many-clients-ignores-cancel", about: "1,000 independent clients; 20 servers, 80 % loaded, with a queue each, that finish cancelled requests",
		world: ignoring, only: append(few[:len(few):len(few)], limited),
	}, {
		name: "pushback", about: "1,000 requests/s; 3 % of attempts take 300 ms, and 0.1 % are answered by 503",
		world: pushed, only: few,
	}, {
		name: "pushback-none", about: "1,000 requests/s; 3 % of attempts take 300 ms, and none is answered by 503",
		world: calm, only: few,
	}, {
		name: "absent", about: "20 callers of the reference backend; 30 % of the answers are 404, and a hedge's 404 does not end its call",
		world: absent, only: []string{baseline, ours},
	}, {
		name: "absent-answer", about: "20 callers of the reference backend; 30 % of the answers are 404, and a hedge's 404 ends its call by WithAnswerStatus(404)",
		world: ends, only: []string{baseline, ours},
	}}
}

// longScenarios returns scenarios of 40 minutes in virtual time, for strategies with an audit (hedge.WithAudit). An
// audit is an experiment of the client: it pauses hedging in some time slots and compares the latencies of slots with
// and without hedging. Its verdict disables hedging that harms.
//
// Each scenario has two parts: learning, the first half, in which audits find their verdicts, and settled, the second
// half.
func longScenarios() []scenario {
	const last = 40 * time.Minute
	rate := 0.8 * 20 / referenceMean.Seconds()
	world := func(q *virtual.Queue) virtual.Simulation {
		return virtual.Simulation{Rate: rate, Requests: int(rate * last.Seconds()), Model: referenceModel(), Queue: q}
	}
	long := func(name, about string, w virtual.Simulation) scenario {
		return scenario{
			name: name, about: about, world: w, long: true, only: []string{baseline, ours, audited, limited},
			parts: []part{partBetween("learning", 0, last/2), partBetween("settled", last/2, forever)},
		}
	}
	ignoring := world(&virtual.Queue{Servers: 20})
	many := ignoring
	many.SeparateClients, many.Hosts = true, clients
	double := ignoring
	double.Model = virtual.WithSlowHedges(referenceModel(), 2)
	swing := ignoring
	swing.Load = func(at time.Duration) float64 { return (0.6 + 0.25*math.Sin(2*math.Pi*at.Minutes()/16)) / 0.8 }
	return []scenario{
		long("long-queue-ignores-cancel", "queue-ignores-cancel for 40 minutes", ignoring),
		long("long-many-clients-ignores-cancel", "many-clients-ignores-cancel for 40 minutes", many),
		long("long-queue-ignores-cancel-double", "queue-ignores-cancel for 40 minutes, where a hedge takes twice as long", double),
		long("long-queue-ignores-cancel-swing", "queue-ignores-cancel for 40 minutes, with a load that swings between 35 and 85 % every 16 minutes", swing),
		long("long-queue", "queue for 40 minutes, 80 % loaded", world(&virtual.Queue{Servers: 20, Cancel: true})),
		long("long-reference", "2,200 requests/s to the reference backend for 40 minutes", world(nil)),
	}
}

// longScenarioNames returns the names of the scenarios that longScenarios returns.
func longScenarioNames() (names []string) {
	for _, sc := range longScenarios() {
		names = append(names, sc.name)
	}
	return names
}
