package main

import "github.com/gohedge/hedge/benchmark/internal/virtual"

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

	few := []string{bare, "published-told", ours}
	return []scenario{{
		name: "many", about: "1,000 clients that know nothing of one another, 2.2 requests/s each, against the published benchmark's backend",
		world: fleet, only: few,
	}, {
		name: "many-deaf", about: "the same clients, against 20 servers with a queue each, 80 % loaded, that work on what is cancelled",
		world: deaf, only: append(few[:len(few):len(few)], "hedge-limited"),
	}, {
		name: "pushback", about: "3 % of attempts take 300 ms, and 0.1 % are answered by 503, 1,000 requests/s",
		world: pushed, only: few,
	}, {
		name: "pushback-none", about: "the same without the 503s",
		world: calm, only: few,
	}}
}
