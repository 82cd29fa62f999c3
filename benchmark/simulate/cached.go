package main

import (
	"time"

	"github.com/gohedge/hedge/benchmark/cachelab"
)

func init() {
	registerEngine(55, cachedEngine)
	registerMetrics(
		newEngineMetric("kb_per_connection", "kB per connection", 20, "%.1f"),
		newEngineMetric("kernel_kb_per_connection", "of the kernel", 21, "%.1f"),
		newEngineMetric("queries_per_second", "queries/s", 22, "%.0f"),
	)
}

const quickCached = 2000

var cachedScenarios = newLabScenarios("DNS: ", cachelab.Scenarios)

// cachedEngine is the engine cached of simulate. It queries DNS servers for names in their caches, and measures the processor
// time of the servers and the memory of connections. It needs root on Linux. The clients are on the host of the server.
var cachedEngine = labEngine[cachelab.Row]{
	engineSpec: engineSpec{
		name: "cached", description: "asks DNS servers for names in their caches, over UDP and TCP (root, Linux)",
		scenarios: append(cachedScenarios, newLabScenarios("DNS: ", cachelab.ManyClients, func(sc *scenario) { sc.long = true })...),
		refusal:   "not a DNS server with a cache", runs: 3,
		maxTimerDelay: 50 * time.Millisecond, // the engine measures processor time, and keeps all processors busy itself
		hidden:        []string{"extra requests", "wins"},
	},
	contenders: func(string) []string { return cachelab.Contenders },
	how:        "all in turn", run: cachelab.Run,
	calls: func(run scenarioRun) int { return run.requestCount(cachelab.Queries, quickCached) },
	complete: func(_ scenarioRun, t *trial, r cachelab.Row) {
		figures := map[string]float64{"queries_per_second": float64(r.Asked) / r.Elapsed.Seconds()}
		if r.ConnectionMemory > 0 {
			figures["kb_per_connection"], figures["kernel_kb_per_connection"] = r.ConnectionMemory/1000, r.KernelMemory/1000
		}
		t.engineFigures = wholeScenarioFigures(figures)
	},
}
