package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/published"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// virtualEngine runs scenarios in virtual time.
type virtualEngine struct{}

func (virtualEngine) name() string { return "virtual" }

func (virtualEngine) runs(sc scenario) bool { return !sc.dns && sc.lab == nil }

func (virtualEngine) offers(sc scenario, s strategy) bool {
	return s.engine == "" && !s.variant && (sc.only == nil || slices.Contains(sc.only, s.name)) && (sc.replays || !s.isOracle())
}

// run puts the strategies through the scenario, several at a time: in virtual
// time they do not disturb each other.
func (e virtualEngine) run(ctx context.Context, j job, keep func(trial)) error {
	world := j.scenario.sized(j.size)
	var (
		wg    sync.WaitGroup
		seats = make(chan struct{}, runtime.GOMAXPROCS(0))
		first = make(chan struct{}) // closed when hedge has run
		extra float64               // what it spent
	)
	measure := func(calls []virtual.Call) {
		hedges := 0
		for _, c := range calls {
			hedges += int(c.Hedges)
		}
		extra = float64(hedges) / float64(max(len(calls), 1))
		close(first)
	}
	start := func(name string, run func(seed uint64, t *task) []virtual.Call) {
		t := j.progress.begin(j.scenario.name, name, max(world.Episodes, 1)*world.Requests)
		wg.Go(func() {
			if strategyOf(name).isOracle() {
				<-first
			}
			seats <- struct{}{}
			defer func() { <-seats }()
			began := time.Now()
			calls := run(j.seed, t)
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
	needed, running := false, false
	for _, name := range j.strategies {
		needed = needed || strategyOf(name).isOracle()
		running = running || name == ours
	}
	if needed && !running { // the oracles need to know what it spends
		measure(world.Run(ctx, j.seed, policy(strategyOf(ours), world, j.scenario), nil))
	}
	for _, name := range j.strategies {
		s := strategyOf(name)
		start(name, func(seed uint64, t *task) []virtual.Call {
			made := func() virtual.Policy { return virtual.Static(nil) }
			switch {
			case ctx.Err() != nil:
			case s.isOracle():
				delays := world.Oracle(seed, s.hedges, extra, oracleGoal(s.hedges))
				made = func() virtual.Policy { return delays }
			case s.name == "published-told":
				rate := told(ctx, world, seed)
				made = func() virtual.Policy { return virtual.NewPublished(rate) }
			default:
				made = policy(s, world, j.scenario)
			}
			return world.Run(ctx, seed, made, t.set)
		})
	}
	wg.Wait()
	return ctx.Err()
}

// policy returns what makes the strategy's policy.
func policy(s strategy, w virtual.World, sc scenario) func() virtual.Policy {
	estimate := sc.estimate * w.ClientRate()
	switch {
	case s.isOurs():
		return func() virtual.Policy { return virtual.NewOurs(engineConfig(s.hedges, estimate)) }
	case s.name == "published":
		if estimate == 0 {
			estimate = published.DefaultRPS
		}
		return func() virtual.Policy { return virtual.NewPublished(estimate) }
	case s.name == "failsafe-10ms" || s.name == "failsafe-quantile":
		return func() virtual.Policy { return &virtual.Failsafe{Delay: s.fixed()} }
	case s.fixed() > 0:
		return func() virtual.Policy { return virtual.Static{s.fixed()} }
	default:
		return func() virtual.Policy { return virtual.None{} }
	}
}

// told returns the requests per second that the published policy is told to
// expect. In a closed loop they depend on how fast it answers, so it goes as for
// an operator: the rate is measured under the defaults, told, measured again,
// and told again.
func told(ctx context.Context, w virtual.World, seed uint64) float64 {
	if w.Workers == 0 {
		return w.ClientRate()
	}
	w.Episodes = 1
	rate := float64(published.DefaultRPS)
	for range 2 {
		calls := w.Run(ctx, seed, func() virtual.Policy { return virtual.NewPublished(rate) }, nil)
		var end time.Duration
		for _, c := range calls {
			end = max(end, c.Start)
		}
		rate = float64(len(calls)) / max(end.Seconds(), 1e-3)
	}
	return rate
}
