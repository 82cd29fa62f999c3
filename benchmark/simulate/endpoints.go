package main

import "github.com/gohedge/hedge/benchmark/endpointlab"

func init() {
	registerEngine(80, endpointsEngine)
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
var endpointsEngine = labEngine[endpointlab.Row]{
	engineSpec: engineSpec{
		name: "endpoints", description: "sends calls to endpoints that answer alike, in fake time",
		scenarios: newLabScenarios("a near endpoint, and one 80 ms away: ", endpointlab.Scenarios),
		refusal:   "not a way to choose an endpoint", population: "with 2 s for failures",
	},
	contenders: func(string) []string { return endpointlab.Contenders },
	how:        "all in fake time", run: endpointlab.FakeTimeRun.Run,
	calls:     func(run scenarioRun) int { return run.requestCount(endpointlab.DefaultCalls, 8000) },
	fixedRate: "the rate of calls to endpoints is that of the scenario",
	complete: func(_ scenarioRun, t *trial, r endpointlab.Row) {
		t.engineFigures = wholeScenarioFigures(map[string]float64{"tokens_pct": 100 * float64(r.Tokens) / float64(len(r.Calls))})
	},
}
