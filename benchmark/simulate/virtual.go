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

// estimateDuration returns the expected duration of the jobs, or 0 if it is short. It measures the speed of this
// machine by a small simulation with each strategy.
func (virtualEngine) estimateDuration(jobs []job) (sum time.Duration) {
	const pilot, worthIt = 5_000, 1_000_000 // requests
	requests := make(map[string]int)        // by strategy
	total := 0
	for _, j := range jobs {
		w := j.scenario.scaledSimulation(j.size)
		for _, name := range j.strategies {
			requests[name] += max(w.Episodes, 1) * w.Requests
			total += max(w.Episodes, 1) * w.Requests
		}
	}
	if total < worthIt {
		return 0 // it is over before an estimate helps
	}
	simulation := virtualScenarios()[0].scaledSimulation(trafficFlags{requests: pilot})
	for name, n := range requests {
		began := time.Now()
		at := virtualSetup{ctx: context.Background(), simulation: simulation, seed: 1, extra: 0.1}
		simulation.Run(at.ctx, 1, findStrategy(name).virtual(at), nil)
		sum += time.Since(began) * time.Duration(n) / pilot
	}
	return sum / time.Duration(runtime.GOMAXPROCS(0))
}

func (virtualEngine) supports(sc scenario, s strategy) bool {
	return s.virtual != nil && s.runsIn(sc) && (sc.replayable || !s.isBestStatic())
}

// withLimiters returns a copy of the simulation w. If the strategy protects servers by Limiters, each server of the
// copy has a hedge.Limiter.
func (s strategy) withLimiters(w virtual.Simulation) virtual.Simulation {
	if s.limited {
		q := *w.Queue
		q.Limited = true
		w.Queue = &q
	}
	return w
}

// runJob simulates the strategies of job j in the scenario of the job, and passes the results of each strategy to keep.
// It simulates several strategies at a time, which does not affect their virtual time.
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
