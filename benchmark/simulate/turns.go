package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A roundRunner runs the contenders of a job in rounds. In each round, every contender sends some of its requests.
type roundRunner struct {
	job
	plan  workPlan
	began time.Time

	all, bestStatics, others []*contender
}

// addContender adds a contender to the rounds. If the job does not name its strategy, the contender stays out of the
// results.
func (t *roundRunner) addContender(c *contender) {
	if c.hidden = !slices.Contains(t.strategies, c.strategy.name); !c.hidden {
		c.task = t.progress.addTask(t.scenario.name, c.strategy.name, t.plan.requests)
	}
	t.all = append(t.all, c)
	if c.strategy.isBestStatic() {
		t.bestStatics = append(t.bestStatics, c)
	} else {
		t.others = append(t.others, c)
	}
}

// endEpisodes stops the servers and clients of all contenders.
func (t *roundRunner) endEpisodes() {
	for _, c := range t.all {
		c.endEpisode()
	}
}

// runRounds lets all contenders send their requests, round by round, in changing order. If ctx ends, it returns early
// without an error.
func (t *roundRunner) runRounds(ctx context.Context) (err error) {
	arrivals := virtual.NewDraws(t.seed)
	turn := func(c *contender, n int) {
		if ctx.Err() == nil && err == nil {
			stop := t.timers.measure()
			err = c.sendRound(ctx, n, arrivals)
			stop()
			c.task.setDone(c.done)
		}
	}
	planned := rounds
	for i := 0; i < planned && ctx.Err() == nil; i++ {
		started := time.Now()
		for k := range t.others { // another one begins each time
			turn(t.others[(k+i)%len(t.others)], t.plan.each)
		}
		if t.plan.limit > 0 { // a slow machine plays fewer rounds
			round := time.Since(started) * time.Duration(len(t.all)) / time.Duration(max(len(t.others), 1))
			left := t.plan.limit - started.Sub(t.began)
			planned = min(planned, i+int(max(left/max(round, 1), 1)))
		}
		// The best static delays play in the second half, twice as much in each round: they need to know what the others did.
		if half := planned / 2; i >= half {
			for _, c := range t.bestStatics {
				c.setup.delays = t.bestStaticDelays(c.strategy)
				turn(c, planned*t.plan.each*(i+1-half)/(planned-half)-c.done)
			}
		}
	}
	return err
}

// bestStaticDelays returns the hedge delays that are best for the latencies measured so far without hedging. They cost
// at most as many hedges per request as the strategy hedge so far. s determines the number of delays and the quantile
// that they minimize.
func (t *roundRunner) bestStaticDelays(s strategy) []time.Duration {
	var took []time.Duration
	var extra float64
	for _, other := range t.all {
		switch other.strategy.name {
		case baseline:
			took = latency.SortedAnswered(other.finishedCalls())
		case ours:
			extra = hedgesPerRequest(other.finishedCalls())
		}
	}
	if len(took) == 0 {
		return nil
	}
	world := virtual.Simulation{Workers: 1, Requests: min(50_000, 20*len(took)), Model: virtual.SampledLatency(took)}
	return world.BestStaticDelays(t.seed, s.bestStaticHedges, extra, s.minimizedQuantile())
}

// hedgesPerRequest returns the number of hedges in calls, divided by the number of calls.
func hedgesPerRequest(calls []latency.Call) float64 {
	hedges := 0
	for _, c := range calls {
		hedges += int(c.Hedges)
	}
	return float64(hedges) / float64(max(len(calls), 1))
}
