package main

import "github.com/gohedge/hedge/benchmark/reclab"

func init() {
	registerEngine(60, recursorEngine)
	registerStrategies(
		strategy{name: "hedge-off", rank: 104, description: "this library's resolver without hedging; a lost query goes to another server"},
		strategy{name: "hedge-novalidate", rank: 105, description: "this library's resolver, which checks no signatures"},
		strategy{name: "unbound-validate", rank: 253, description: "unbound, which checks signatures, if it is installed"},
		strategy{name: "named-validate", rank: 255, description: "BIND, which checks signatures, if it is installed"},
	)
}

// recursorEngine is the engine recursor of simulate. It queries recursive DNS resolvers for names in a simulated
// internet with thousands of servers. It queries all installed resolvers at the same time, through kernel sockets in
// network namespaces. It needs root on Linux.
//
// Resolvers start with the addresses of the root servers. A failure counts as a latency of ten seconds. Questions do
// not count if the machine stalls for a tenth of a second within the next two seconds.
//
// Where zones are signed, an answer of a validating resolver fails if its AD flag is wrong. For a name without a valid
// signature, any answer but SERVFAIL fails.
var recursorEngine = labEngine[reclab.Row]{
	engineSpec: engineSpec{
		name: "recursor", description: "asks resolvers for names in an internet of thousands of simulated servers (root, Linux)",
		scenarios: newLabScenarios("names that nobody has asked for: ", reclab.Scenarios, func(sc *scenario) {
			sc.excludedFromAll = reclab.HasSignedZones(sc.name)
			if sc.name == "keytrap" {
				sc.parts = divideByIndex("traps", reclab.IsKeyTrapQuestion)
			}
		}),
		refusal: "not a resolver, or not one for this scenario", runs: 3,
		maxTimerDelay: 2 * maxTimerDelay, // answers take ten times as long as those of other engines
		population:    "with 10 s for failures", hidden: []string{"extra requests", "wins"},
	},
	contenders: reclab.ContendersOf,
	how:        "all at once", run: reclab.Run,
	calls: func(run scenarioRun) int {
		if run.scenario.name == "dead" { // where each takes seconds
			return run.requestCount(1000, 300)
		}
		return run.requestCount(reclab.DefaultQuestions, 300)
	},
	complete: func(run scenarioRun, _ *trial, r reclab.Row) {
		if r.Stalled > 0 {
			run.progress.printLine("%s: %d questions are left out: this machine stood still when they were asked, or soon after", r.Contender, r.Stalled)
		}
	},
}
