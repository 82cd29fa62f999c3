package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/cachelab"
	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
)

func init() {
	registerEngine(55, func() engine { return cachedEngine{} })
	registerMetrics(
		newEngineMetric("kb_per_connection", "kB per connection", 20, "%.1f"),
		newEngineMetric("kernel_kb_per_connection", "of the kernel", 21, "%.1f"),
		newEngineMetric("queries_per_second", "queries/s", 22, "%.0f"),
	)
}

// cachedEngine is the engine cached of simulate. It queries DNS servers for names in their caches, and measures the
// processor time of the servers and the memory of connections. It needs root on Linux. The clients are on the host of
// the server.
type cachedEngine struct{}

func (cachedEngine) spec() engineSpec {
	return engineSpec{
		name: "cached", description: "asks DNS servers for names in their caches, over UDP and TCP (root, Linux)",
		scenarios: slices.Concat(cachedScenarios, manyClients), refusal: "not a DNS server with a cache", runs: cachedRuns,
		maxTimerDelay: maxTimerDelayOfCached, hidden: []string{"extra requests", "wins"},
	}
}

const (
	cachedRuns  = 3 // unless -runs or -quick says otherwise
	quickCached = 2000

	// maxTimerDelayOfCached is large, because the engine measures processor time, and keeps all processors busy itself.
	maxTimerDelayOfCached = 50 * time.Millisecond
)

// cachedScenarios has the scenarios of package cachelab, for the engine cached.
var cachedScenarios = newLabScenarios("DNS: ", cachelab.Scenarios)

// manyClients has further scenarios, which take long.
var manyClients = newManyClients()

func newManyClients() []scenario {
	all := newLabScenarios("DNS: ", cachelab.ManyClients)
	for i := range all {
		all[i].long = true
	}
	return all
}

func (cachedEngine) supports(sc scenario, s strategy) bool {
	return slices.Contains(cachelab.Contenders, s.name) && (s.name != dnsserver.BareGo || sc.name == "tcp-new")
}

func (cachedEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	queries := j.requestCount(cachelab.Queries, quickCached)
	return runLab(ctx, j, "all in turn", queries*len(j.strategies), keep, func(count func(int)) ([]cachelab.Row, error) {
		return cachelab.Run(ctx, cachelab.Config{
			Scenario: j.scenario.name, Contenders: j.selectContenders(cachelab.Contenders), Queries: queries, Seed: j.seed,
			Peers: j.peers, Reporter: lab.Reporter{Progress: count, Skipped: j.printSkipped},
		})
	}, func(r cachelab.Row) trial {
		t := j.newTrial("cached", r.Contender, r.Calls)
		each := roundToFourDecimals(float64(r.CPU.Microseconds()) / float64(r.Asked))
		t.cpu = &each
		figures := map[string]float64{"queries_per_second": float64(r.Asked) / r.Elapsed.Seconds()}
		if r.ConnectionMemory > 0 {
			figures["kb_per_connection"], figures["kernel_kb_per_connection"] = r.ConnectionMemory/1000, r.KernelMemory/1000
		}
		t.engineFigures = wholeScenarioFigures(figures)
		return t
	})
}
