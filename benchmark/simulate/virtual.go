package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// virtualEngine runs scenarios in virtual time.
type virtualEngine struct{}

func (virtualEngine) name() string { return "virtual" }

func (virtualEngine) runs(sc scenario) bool { return !sc.dns && sc.lab == nil }

func (virtualEngine) offers(sc scenario, s strategy) bool {
	return s.virtual != nil && s.isFor(sc) && (sc.replays || !s.isOracle())
}

// run puts the strategies through the scenario, several at a time: in virtual
// time they do not disturb each other.
func (e virtualEngine) run(ctx context.Context, j job, keep func(trial)) error {
	world := j.scenario.sized(j.size)
	var (
		wg    sync.WaitGroup
		seats = make(chan struct{}, runtime.GOMAXPROCS(0))
		first = make(chan struct{}) // closed when hedge has run, which oracles wait for
		extra float64               // hedges per request that it sent
	)
	measure := func(calls []virtual.Call) {
		hedges := 0
		for _, c := range calls {
			hedges += int(c.Hedges)
		}
		extra = float64(hedges) / float64(max(len(calls), 1))
		close(first)
	}
	play := func(name string, t *task) []virtual.Call {
		if ctx.Err() != nil {
			return nil
		}
		s := strategyOf(name)
		at := setting{ctx: ctx, world: world, seed: j.seed, estimate: j.scenario.estimate * world.Rate}
		if s.isOracle() {
			at.extra = extra
		}
		return world.Run(ctx, j.seed, s.virtual(at), t.set)
	}
	start := func(name string) {
		t := j.progress.begin(j.scenario.name, name, max(world.Episodes, 1)*world.Requests)
		wg.Go(func() {
			if strategyOf(name).isOracle() {
				<-first
			}
			seats <- struct{}{}
			defer func() { <-seats }()
			began := time.Now()
			calls := play(name, t)
			if name == ours {
				measure(calls)
			}
			if ctx.Err() != nil {
				t.drop()
				return
			}
			t.end(time.Since(began))
			keep(trial{engine: e.name(), scenario: j.scenario, strategy: name, seed: j.seed, calls: calls})
		})
	}
	needed := slices.ContainsFunc(j.strategies, func(n string) bool { return strategyOf(n).isOracle() })
	if needed && !slices.Contains(j.strategies, ours) {
		measure(play(ours, nil))
	}
	for _, name := range j.strategies {
		start(name)
	}
	wg.Wait()
	return ctx.Err()
}
