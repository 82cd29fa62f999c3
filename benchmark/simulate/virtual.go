package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// virtualEngine is the engine virtual of simulate: a discrete-event simulation in virtual time. It simulates about a
// million requests per second, with the same result for the same seed on any machine.
//
// The policy code of this library runs by the clock of the simulation. hedgedhttp and failsafe-go have clocks of their
// own, so models stand for them.
type virtualEngine struct{}

func init() { registerEngine(5, virtualEngine{}) }

func (virtualEngine) spec() engineSpec {
	return engineSpec{
		name: "virtual", description: "simulates the clients and the server in virtual time: seconds, and the same figures on every machine",
		scenarios: virtualScenarios(),
	}
}

func (virtualEngine) supports(sc scenario, s strategy) bool {
	return s.virtual != nil && s.runsIn(sc) && (sc.replayable || !s.hasBestStaticDelays())
}

// withLimiters returns a copy of w whose servers have a hedge.Limiter before their queue if s.limited is set.
func (s strategy) withLimiters(w virtual.Simulation) virtual.Simulation {
	if s.limited {
		q := *w.Queue
		q.Limited = true
		w.Queue = &q
	}
	return w
}

// runOnce simulates the strategies of run, several at a time, and passes their trials to keep. Strategies with best
// static delays come last, because these delays depend on the hedges of this library.
func (virtualEngine) runOnce(ctx context.Context, run scenarioRun, keep func(trial)) error {
	simulation := run.scenario.adjustedSimulation(run.size)
	var extra float64 // hedges per request that this library has sent
	simulate := func(s strategy, progress func(int)) []latency.Call {
		at := policyConfig{ctx: ctx, simulation: simulation, seed: run.seed, estimate: run.scenario.rateEstimateFactor * simulation.ClientRate()}
		if s.hasBestStaticDelays() {
			at.extra = extra
		}
		calls := s.withLimiters(simulation).Run(ctx, run.seed, s.virtual(at), progress)
		if s.name == libraryStrategy {
			extra = hedgesPerRequest(calls)
		}
		return calls
	}
	simulateAll := func(isWanted func(strategy) bool) {
		var wg sync.WaitGroup
		slots := make(chan struct{}, runtime.GOMAXPROCS(0))
		for _, name := range run.strategies {
			s := findStrategy(name)
			if !isWanted(s) {
				continue
			}
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				task, began := run.progress.addTask(run.scenario.name, name, max(simulation.Episodes, 1)*simulation.Requests), time.Now()
				calls := simulate(s, task.setDone)
				if ctx.Err() != nil {
					task.markStopped()
					return
				}
				task.reportFinished(time.Since(began))
				keep(run.newTrial("virtual", name, calls))
			})
		}
		wg.Wait()
	}
	simulateAll(func(s strategy) bool { return !s.hasBestStaticDelays() })
	if needed := slices.ContainsFunc(run.strategies, func(n string) bool { return findStrategy(n).hasBestStaticDelays() }); needed && !slices.Contains(run.strategies, libraryStrategy) {
		simulate(findStrategy(libraryStrategy), nil)
	}
	simulateAll(strategy.hasBestStaticDelays)
	return ctx.Err()
}
