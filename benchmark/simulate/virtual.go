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

func init() { registerEngine(5, func() engine { return virtualEngine{} }) }

func (virtualEngine) spec() engineSpec {
	return engineSpec{
		name: "virtual", description: "simulates the clients and the server in virtual time: seconds, and the same figures on every machine",
		scenarios: virtualScenarios(),
	}
}

func (virtualEngine) supports(sc scenario, s strategy) bool {
	return s.virtual != nil && s.runsIn(sc) && (sc.replayable || !s.isBestStatic())
}

// withLimiters returns a copy of w whose servers have a hedge.Limiter if the strategy says so.
func (s strategy) withLimiters(w virtual.Simulation) virtual.Simulation {
	if s.limited {
		q := *w.Queue
		q.Limited = true
		w.Queue = &q
	}
	return w
}

// runJob simulates several strategies at a time, which does not affect their virtual time.
func (virtualEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	simulation := j.scenario.scaledSimulation(j.size)
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, runtime.GOMAXPROCS(0))
		first = make(chan struct{}) // closed when hedge has run, which the best static delays wait for
		extra float64               // hedges per request that it sent
	)
	measure := func(calls []latency.Call) {
		extra = hedgesPerRequest(calls)
		close(first)
	}
	play := func(name string, t *progressTask) []latency.Call {
		if ctx.Err() != nil {
			return nil
		}
		s := findStrategy(name)
		at := virtualSetup{ctx: ctx, simulation: simulation, seed: j.seed, estimate: j.scenario.rateEstimateFactor * simulation.ClientRate()}
		if s.isBestStatic() {
			at.extra = extra
		}
		return s.withLimiters(simulation).Run(ctx, j.seed, s.virtual(at), t.setDone)
	}
	start := func(name string) {
		t := j.progress.addTask(j.scenario.name, name, max(simulation.Episodes, 1)*simulation.Requests)
		wg.Go(func() {
			if findStrategy(name).isBestStatic() {
				<-first
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			began := time.Now()
			calls := play(name, t)
			if name == libraryStrategy {
				measure(calls)
			}
			if ctx.Err() != nil {
				t.markStopped()
				return
			}
			t.finishAfter(time.Since(began))
			keep(j.newTrial("virtual", name, calls))
		})
	}
	needed := slices.ContainsFunc(j.strategies, func(n string) bool { return findStrategy(n).isBestStatic() })
	if needed && !slices.Contains(j.strategies, libraryStrategy) {
		measure(play(libraryStrategy, nil))
	}
	for _, name := range j.strategies {
		start(name)
	}
	wg.Wait()
	return ctx.Err()
}
