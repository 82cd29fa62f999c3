package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A scenarioRun is one run of the selected strategies in a scenario, with one seed for all random numbers.
type scenarioRun struct {
	scenario   *scenario
	strategies []string
	seed       uint64
	size       trafficFlags
	share      int // number of runs among which the available time is divided equally
	progress   *progressDisplay
	timers     *timerMonitor
	peers      dnsserver.PeerCommands
	transport  string // of the engine dns
	fake       bool   // time, by testing/synctest
}

// requestCount returns the number of requests of each strategy: -requests if set, else quick if -quick is set, else usual.
func (run scenarioRun) requestCount(usual, quick int) int {
	switch {
	case run.size.requests > 0:
		return run.size.requests
	case run.size.quick:
		return quick
	}
	return usual
}

// newTrial returns a trial with the scenario and the seed of the run, and the calls of one strategy.
func (run scenarioRun) newTrial(engine, strategy string, calls []latency.Call) trial {
	return trial{engine: engine, scenario: run.scenario, strategy: strategy, seed: run.seed, calls: calls}
}

// runScenarios runs the selected scenarios with the selected engine, and shows the progress in p. If ctx ends, it
// returns the results so far and an error.
func runScenarios(ctx context.Context, o options, p *progressDisplay) (found engineResults, err error) {
	found.options = o
	jobs := o.planRuns(p)
	engine := o.engine.spec()
	if engine.runsInRealTime() {
		t := new(timerMonitor)
		stop := t.startMeasuring()
		time.Sleep(initialTimerTime)
		stop()
		if late := t.p99Delay(); late > engine.maxTimerDelay {
			p.printLine("%s", engine.busyWarning(late))
		}
	}
	t := new(timerMonitor)
	defer func() { found.timerDelay = t.p99Delay() }()
	for len(jobs) > 0 {
		runs := jobs[:o.runs]
		jobs = jobs[o.runs:]
		f, err := runScenario(ctx, o, runs, t)
		if len(f.results) > 0 {
			found.scenarios = append(found.scenarios, f)
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// runScenario does all runs of one scenario and returns the joined results. t measures the lateness of timers. After an
// error, the results are those so far.
func runScenario(ctx context.Context, o options, runs []scenarioRun, t *timerMonitor) (f scenarioResults, err error) {
	var (
		mu   sync.Mutex
		done = make(map[string][]strategyResult)
	)
	for _, run := range runs {
		run.timers = t
		err = o.engine.runOnce(ctx, run, func(t trial) {
			r := t.toResult()
			mu.Lock()
			defer mu.Unlock()
			done[t.strategy] = append(done[t.strategy], r)
		})
		if err != nil {
			break
		}
	}
	f.scenario = *runs[0].scenario
	if w := f.scenario.adjustedSimulation(o.size); w.Rate != f.scenario.simulation.Rate {
		f.scenario.description += fmt.Sprintf("; here with %s requests/s", formatThousands(int(math.Round(w.Rate))))
	}
	for _, name := range runs[0].strategies {
		if all := done[name]; len(all) > 0 {
			slices.SortFunc(all, func(a, b strategyResult) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
			f.results = append(f.results, joinRuns(all))
		}
	}
	return f, err
}

// planRuns returns the runs of each selected scenario, grouped by scenario. The flag -runs gives the number of runs of
// each scenario, which have consecutive seeds.
func (o options) planRuns(p *progressDisplay) (all []scenarioRun) {
	for _, sc := range o.scenarios {
		for i := range o.runs {
			all = append(all, scenarioRun{
				scenario: &sc, strategies: o.selectStrategies(sc), seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p, peers: o.peers, transport: o.transport,
			})
		}
	}
	return all
}
