package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/gohedge/hedge/benchmark/endpointlab"
)

func init() {
	registerHelperProcess(endpointlab.FakeTimeRun.Serve)
	registerEngine(80, func() engine { return endpointsEngine{} })
	registerMetrics(newEngineMetric("tokens_pct", "tokens %", 19, "%.2f"))
	registerStrategies(
		strategy{name: "far", rank: 1090, description: "all calls go to the last of the endpoints"},
		strategy{name: "failover", rank: 1092, description: "after an error, a call goes to the next endpoint"},
		strategy{name: endpointsStrategy, rank: 1096, description: "this library with WithEndpoints"},
		strategy{name: endpointsStrategy + "-3", rank: 1098, description: "the same, and a hedge to another endpoint than the first one costs three tokens"},
	)
}

// endpointsStrategy is the name of the strategy that uses WithEndpoints. Longer names with this prefix stand for the
// same strategy with further options.
const endpointsStrategy = "hedge-endpoints"

// endpointsEngine is the engine endpoints of simulate. It sends calls to endpoints that can answer in place of each
// other, 100 per second for two minutes, in fake time. The latency of the second endpoint is 80 ms longer than that of
// the first. All strategies meet the same faults. A failed call counts with its timeout, two seconds.
type endpointsEngine struct{}

func (endpointsEngine) spec() engineSpec {
	return engineSpec{
		name: "endpoints", description: "sends calls to endpoints that answer alike, in fake time",
		scenarios: endpointScenarios, refusal: "not a way to choose an endpoint",
		population: "with 2 s for failures",
	}
}

func (endpointsEngine) supports(_ scenario, s strategy) bool {
	return slices.Contains(endpointlab.Contenders, s.name)
}

const quickCalls = 8000

// endpointScenarios has the scenarios of package endpointlab, for the engine endpoints.
var endpointScenarios = newLabScenarios("a near endpoint, and one 80 ms away: ", endpointlab.Scenarios)

func (endpointsEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: the rate of calls to endpoints is that of the scenario", j.size.rps)
	}
	calls := j.requestCount(endpointlab.DefaultCalls, quickCalls)
	return runLab(ctx, j, "all in fake time", calls*len(j.strategies), keep, func(func(int)) ([]endpointlab.Row, error) {
		return endpointlab.FakeTimeRun.Run(ctx, endpointlab.Config{Scenario: j.scenario.name, Contenders: j.strategies, Calls: calls, Seed: j.seed})
	}, func(r endpointlab.Row) trial {
		t := j.newTrial("endpoints", r.Contender, r.Calls)
		t.failures = r.Failures
		t.engineFigures = wholeScenarioFigures(map[string]float64{"tokens_pct": 100 * float64(r.Tokens) / float64(len(r.Calls))})
		return t
	})
}
