package main

import (
	"context"
	"slices"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/reclab"
)

func init() {
	registerHelperProcess(reclab.ServeResolver)
	registerEngine(60, func() engine { return recursorEngine{} })
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
type recursorEngine struct{}

func (recursorEngine) spec() engineSpec {
	return engineSpec{
		name: "recursor", description: "asks resolvers for names in an internet of thousands of simulated servers (root, Linux)",
		scenarios: recursorScenarios, refusal: "not a resolver, or not one for this scenario", runs: recursorRuns,
		maxTimerDelay: maxTimerDelayOfRecursor, population: "with 10 s for failures", hidden: []string{"extra requests", "wins"},
	}
}

// maxTimerDelayOfRecursor is twice that of other engines, because answers take ten times as long.
const maxTimerDelayOfRecursor = 2 * maxTimerDelay

func (recursorEngine) supports(sc scenario, s strategy) bool {
	return slices.Contains(reclab.ContendersOf(sc.name), s.name)
}

const (
	recursorRuns = 3 // unless -runs or -quick says otherwise

	quickQuestions = 300
	deadQuestions  = 1000 // in the scenario of that name, where each takes seconds
)

// recursorScenarios has the scenarios of package reclab, for the engine recursor.
var recursorScenarios = func() []scenario {
	var all []scenario
	for _, s := range reclab.Scenarios {
		sc := scenario{name: s.Name, description: "names that nobody has asked for: " + s.Description, excludedFromAll: reclab.HasSignedZones(s.Name)}
		if s.Name == "keytrap" {
			trapped := func(c latency.Call) bool { return reclab.IsKeyTrapQuestion(c.Index) }
			sc.parts = []scenarioPart{{name: "traps", contains: trapped}, {name: "others", contains: func(c latency.Call) bool { return !trapped(c) }}}
		}
		all = append(all, sc)
	}
	return all
}()

// questionCountAndRate returns the number of questions to each resolver in job j, and their rate per second.
func questionCountAndRate(j job) (n int, rate float64) {
	n, rate = j.size.requests, j.size.rps
	switch {
	case n > 0:
	case j.size.quick:
		n = quickQuestions
	case j.scenario.name == "dead":
		n = deadQuestions
	default:
		n = reclab.DefaultQuestions
	}
	if rate == 0 {
		rate = reclab.DefaultRate
	}
	return n, rate
}

func (recursorEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	n, rate := questionCountAndRate(j)
	return runLab(ctx, j, "all at once", n*len(j.strategies), keep, func(count func(int)) ([]reclab.Row, error) {
		rows, err := reclab.Run(ctx, reclab.Config{
			Scenario: j.scenario.name, Contenders: j.selectContenders(reclab.ContendersOf(j.scenario.name)), Questions: n, Rate: rate, Seed: j.seed,
			Peers: j.peers, Reporter: lab.Reporter{Progress: count, Skipped: j.printSkipped},
		})
		if len(rows) > 0 && rows[0].Stalled > 0 {
			j.progress.printLine("%d questions are left out: this machine stood still when they were asked, or soon after", rows[0].Stalled)
		}
		return rows, err
	}, func(r reclab.Row) trial {
		sent := roundToFourDecimals(r.SentPerCall())
		t := j.newTrial("recursor", r.Contender, r.Calls)
		t.refused, t.failures, t.sent = int(r.Denied), r.Failures, &sent
		t.cost = &hedgeCost{extra: 100 * (sent - 1), hedges: int(r.Hedges), wins: int(r.Wins)}
		if r.CPU > 0 {
			each := float64(r.CPU.Microseconds()) / float64(r.Asked)
			t.cpu = &each
		}
		return t
	})
}
