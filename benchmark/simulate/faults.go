package main

import (
	"cmp"
	"time"

	"github.com/gohedge/hedge/benchmark/faultlab"
)

func init() {
	registerEngine(50, faultsEngine)
	registerMetrics(newEngineMetric("denials", "denials", 15, "%.0f"), newEngineMetric("last_answer_ms", "last", 16, ""))
	registerStrategies(
		strategy{name: "hedge-resolvconf", rank: 1030, description: "this library's DNS client without Upstreams, which reads resolv.conf"},
		strategy{name: "hedge-upstreams", rank: 1040, description: "the same with both servers as Upstreams; with OrderStrict if they know different names"},
		strategy{name: "hedge-fallback", rank: 1050, description: "the same with the second server as Fallback"},
	)
}

// faultsEngine is the engine faults of simulate. It queries DNS resolvers while one of their two servers, or the
// network path to the server, has a fault. The resolvers are Go's own, unbound as a forwarder, and the Client of this
// library with resolv.conf, with Upstreams and with Fallback.
//
// It needs root on Linux. It queries all resolvers at the same time through kernel sockets, and a question may take ten
// seconds. Package faultlab tests the same scenarios in fake time.
var faultsEngine = labEngine[faultlab.Row]{
	engineSpec: engineSpec{
		name: "faults", description: "asks resolvers while one of their two servers, or the way there, has a fault (root, Linux)",
		scenarios: newLabScenarios("DNS: ", faultlab.Scenarios), refusal: "not a resolver that is given servers",
		maxTimerDelay: 25 * time.Millisecond, // a quarter of the difference to detect: a last answer that is 0.1 s late
		hidden:        []string{"extra requests", "wins"},
	},
	contenders: func(string) []string { return faultlab.Contenders },
	how:        "all at once", calls: faultQueryCount, run: faultlab.Run,
	complete: func(_ scenarioRun, t *trial, r faultlab.Row) {
		t.engineFigures = wholeScenarioFigures(map[string]float64{"denials": float64(r.Denials), "last_answer_ms": toMillis(r.LastAnswer)})
	},
}

// faultQueryCount returns how many queries each resolver gets: the value of -requests, or else the duration of the
// scenario times the rate of -rps or the default.
func faultQueryCount(run scenarioRun) int {
	seconds := faultlab.QueryDuration(run.scenario.name).Seconds()
	return run.requestCount(int(cmp.Or(run.size.rps, faultlab.DefaultRate)*seconds), int(cmp.Or(run.size.rps, 20)*seconds))
}
