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

// serviceScenarios are about what a service sees of its callers, and they of it.
func serviceScenarios() []scenario {
	fleet := virtual.World{Fleet: true, Hosts: clients, Rate: clients * clientRate, Requests: 300_000, Model: seedModel()}
	deaf := fleet
	deaf.Queue = &virtual.Queue{Servers: 20}
	deaf.Rate = 0.8 * 20 / seedMean.Seconds()

	// One call in 33 is slow, and so are few enough to be hedged well before.
	pushed := virtual.World{Rate: 1000, Requests: 400_000, Model: virtual.Late(virtual.Lognormal(5*ms, 2*ms), 0.03, 295*ms)}
	calm := pushed
	pushed.Refused = 0.001

	absent := virtual.World{Workers: 20, Requests: 400_000, Model: seedModel(), Absent: 0.3}
	ends := absent
	ends.AbsentEnds = true

	few := []string{bare, "published-told", ours}
	return []scenario{{
		name: "many", about: "1,000 clients that know nothing of one another, 2.2 requests/s each, against the published benchmark's backend",
		world: fleet, only: few,
	}, {
		name: "many-deaf", about: "the same clients, against 20 servers with a queue each, 80 % loaded, that work on what is cancelled",
		world: deaf, only: append(few[:len(few):len(few)], limited),
	}, {
		name: "pushback", about: "3 % of attempts take 300 ms, and 0.1 % are answered by 503, 1,000 requests/s",
		world: pushed, only: few,
	}, {
		name: "pushback-none", about: "the same without the 503s",
		world: calm, only: few,
	}, {
		name: "absent", about: "the published benchmark's backend, where 30 % of the answers are 404, and a hedge's does not end its call",
		world: absent, only: []string{bare, ours},
	}, {
		name: "absent-answer", about: "the same with WithAnswerStatus(404)",
		world: ends, only: []string{bare, ours},
	}}
}

// longScenarios last for 40 minutes, in which an audit learns whether hedging helps, and is then held to it.
func longScenarios() []scenario {
	const last = 40 * time.Minute
	rate := 0.8 * 20 / seedMean.Seconds()
	world := func(q *virtual.Queue) virtual.World {
		return virtual.World{Rate: rate, Requests: int(rate * last.Seconds()), Model: seedModel(), Queue: q}
	}
	long := func(name, about string, w virtual.World) scenario {
		return scenario{
			name: name, about: about, world: w, long: true, only: []string{bare, ours, audited, limited},
			parts: []part{within("learning", 0, last/2), within("settled", last/2, forever)},
		}
	}
	deaf := world(&virtual.Queue{Servers: 20})
	many := deaf
	many.Fleet, many.Hosts = true, clients
	double := deaf
	double.Model = virtual.Hedges(seedModel(), 2)
	swing := deaf
	swing.Load = func(at time.Duration) float64 { return (0.6 + 0.25*math.Sin(2*math.Pi*at.Minutes()/16)) / 0.8 }
	return []scenario{
		long("long-queue-deaf", "queue-deaf for 40 minutes", deaf),
		long("long-many-deaf", "many-deaf for 40 minutes", many),
		long("long-queue-deaf-double", "queue-deaf for 40 minutes, where a hedge takes twice as long", double),
		long("long-queue-deaf-swing", "the same servers, whose load swings between 35 and 85 % every 16 minutes", swing),
		long("long-queue", "the same servers, 80 % loaded, which stop working on cancelled requests, for 40 minutes", world(&virtual.Queue{Servers: 20, Cancel: true})),
		long("long-seed", "the published benchmark's backend at 2,200 requests/s, for 40 minutes", world(nil)),
	}
}

// longNames are the names of the scenarios with audits.
func longNames() (names []string) {
	for _, sc := range longScenarios() {
		names = append(names, sc.name)
	}
	return names
}
