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

// virtualEngine is a discrete-event simulation: about a million requests per second, and the same result for the same seed on
// any machine. It drives the policy code of this library by the simulation's clock. Models stand for hedgedhttp and failsafe-go,
// which have clocks of their own.
type virtualEngine struct{}

func init() { registerEngine(5, func() engine { return virtualEngine{} }) }

func (virtualEngine) profile() profile {
	return profile{
		name: "virtual", about: "simulates the clients and the server in virtual time: seconds, and the same figures on every machine",
		scenarios: virtualScenarios(),
	}
}

// estimate plays a small job with each strategy, to measure how fast this machine is.
func (virtualEngine) estimate(jobs []job) (sum time.Duration) {
	const pilot, worthIt = 5_000, 1_000_000 // requests
	requests := make(map[string]int)        // by strategy
	total := 0
	for _, j := range jobs {
		w := j.scenario.worldOfSize(j.size)
		for _, name := range j.strategies {
			requests[name] += max(w.Episodes, 1) * w.Requests
			total += max(w.Episodes, 1) * w.Requests
		}
	}
	if total < worthIt {
		return 0 // it is over before an estimate helps
	}
	world := scenarioOf("reference").worldOfSize(size{requests: pilot})
	for name, n := range requests {
		began := time.Now()
		at := setting{ctx: context.Background(), world: world, seed: 1, extra: 0.1}
		world.Run(at.ctx, 1, strategyOf(name).virtual(at), nil)
		sum += time.Since(began) * time.Duration(n) / pilot
	}
	return sum / time.Duration(runtime.GOMAXPROCS(0))
}

func (virtualEngine) offers(sc scenario, s strategy) bool {
	return s.virtual != nil && s.isFor(sc) && (sc.only == nil || slices.Contains(sc.only, s.name)) && (sc.replays || !s.isBestStatic())
}

// worldWithLimiters returns w, with Limiters if the strategy has them.
func (s strategy) worldWithLimiters(w virtual.Simulation) virtual.Simulation {
	if s.limited {
		q := *w.Queue
		q.Limited = true
		w.Queue = &q
	}
	return w
}

// run puts the strategies through the scenario, several at a time: in virtual
// time they do not disturb each other.
func (virtualEngine) run(ctx context.Context, j job, keep func(trial)) error {
	world := j.scenario.worldOfSize(j.size)
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, runtime.GOMAXPROCS(0))
		first = make(chan struct{}) // closed when hedge has run, which the best static delays wait for
		extra float64               // hedges per request that it sent
	)
	measure := func(calls []latency.Call) {
		extra = extraOf(calls)
		close(first)
	}
	play := func(name string, t *task) []latency.Call {
		if ctx.Err() != nil {
			return nil
		}
		s := strategyOf(name)
		at := setting{ctx: ctx, world: world, seed: j.seed, estimate: j.scenario.estimate * world.ClientRate()}
		if s.isBestStatic() {
			at.extra = extra
		}
		return s.worldWithLimiters(world).Run(ctx, j.seed, s.virtual(at), t.setDone)
	}
	start := func(name string) {
		t := j.progress.addTask(j.scenario.name, name, max(world.Episodes, 1)*world.Requests)
		wg.Go(func() {
			if strategyOf(name).isBestStatic() {
				<-first
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			began := time.Now()
			calls := play(name, t)
			if name == ours {
				measure(calls)
			}
			if ctx.Err() != nil {
				t.abandon()
				return
			}
			t.finishAfter(time.Since(began))
			keep(j.newTrial("virtual", name, calls))
		})
	}
	needed := slices.ContainsFunc(j.strategies, func(n string) bool { return strategyOf(n).isBestStatic() })
	if needed && !slices.Contains(j.strategies, ours) {
		measure(play(ours, nil))
	}
	for _, name := range j.strategies {
		start(name)
	}
	wg.Wait()
	return ctx.Err()
}
