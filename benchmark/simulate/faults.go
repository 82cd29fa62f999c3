package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/faultlab"
	"github.com/gohedge/hedge/benchmark/internal/lab"
)

func init() {
	registerHelperProcess(faultlab.ServeGoResolver)
	registerEngine(50, func() engine { return faultsEngine{} })
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
type faultsEngine struct{}

func (faultsEngine) spec() engineSpec {
	return engineSpec{
		name: "faults", description: "asks resolvers while one of their two servers, or the way there, has a fault (root, Linux)",
		scenarios: faultScenarios, refusal: "not a resolver that is given servers",
		maxTimerDelay: maxTimerDelayOfFaults, hidden: []string{"extra requests", "wins"},
	}
}

// maxTimerDelayOfFaults is a quarter of the difference that this engine must detect: a last answer that is a tenth of a
// second late.
const maxTimerDelayOfFaults = 25 * time.Millisecond

func (faultsEngine) supports(_ scenario, s strategy) bool {
	return slices.Contains(faultlab.Contenders, s.name)
}

const quickRate = 20. // questions a second

// faultScenarios has the scenarios of package faultlab, for the engine faults.
var faultScenarios = newLabScenarios("DNS: ", faultlab.Scenarios)

// faultRate returns the number of questions per second to each resolver. The scenario determines the duration.
func faultRate(j job) float64 {
	switch {
	case j.size.requests > 0:
		return float64(j.size.requests) / faultlab.QueryDuration(j.scenario.name).Seconds()
	case j.size.rps > 0:
		return j.size.rps
	case j.size.quick:
		return quickRate
	}
	return faultlab.DefaultRate
}

func (faultsEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	rate := faultRate(j)
	calls := int(rate*faultlab.QueryDuration(j.scenario.name).Seconds()) * len(j.strategies)
	return runLab(ctx, j, "all at once", calls, keep, func(count func(int)) ([]faultlab.Row, error) {
		return faultlab.Run(ctx, faultlab.Config{
			Scenario: j.scenario.name, Contenders: j.selectContenders(faultlab.Contenders), Rate: rate, Seed: j.seed,
			Peers: j.peers, Reporter: lab.Reporter{Progress: count, Skipped: j.printSkipped},
		})
	}, func(r faultlab.Row) trial {
		sent := roundToFourDecimals(r.SentPerCall())
		t := j.newTrial("faults", r.Contender, r.Calls)
		t.cost, t.sent = &hedgeCost{extra: 100 * (sent - 1)}, &sent
		t.engineFigures = wholeScenarioFigures(map[string]float64{"denials": float64(r.Denials), "last_answer_ms": toMillis(r.LastAnswer)})
		return t
	})
}
