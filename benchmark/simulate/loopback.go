package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/published"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// loopback runs scenarios in real time by the named protocol: over loopback
// sockets, or over a network in memory if the scenario has a lab.
type loopback string

func (l loopback) name() string { return string(l) }

// runs excludes what the server does not play: queues, hosts, and time.
func (l loopback) runs(sc scenario) bool { return slices.Contains(sc.sockets, string(l)) }

func (l loopback) offers(sc scenario, s strategy) bool {
	if l == "grpc" {
		return s.grpc != nil && s.isFor(sc)
	}
	return s.http != nil && s.isFor(sc)
}

const (
	rounds = 10

	usual      = 50_000 // requests of each strategy
	usualTime  = 160 * time.Second
	quickUsual = 3_000 // of all scenarios together
	quickLeast = 1_000 // of each
	quickTime  = 14 * time.Second

	labTime      = 25 * time.Second // of a scenario that has a lab
	quickLabTime = 2800 * time.Millisecond

	calibration      = 1_500 // requests to measure the rate by
	quickCalibration = 500
)

// run lets the contenders take turns. If the number of requests was not asked
// for, there are as many rounds as there is time for, one at least.
func (l loopback) run(ctx context.Context, j job, keep func(trial)) error {
	world := j.scenario.sized(j.size)
	requests, each, limit := j.work(world)
	began := time.Now()
	rate, err := l.trueRate(ctx, j, world)
	if err != nil {
		return err
	}
	var all []*contender
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	add := func(name string, hidden bool) error {
		c, err := newContender(strategyOf(name), string(l), j, world, requests, rate)
		if err != nil {
			return err
		}
		c.hidden = hidden
		if !hidden {
			c.task = j.progress.begin(j.scenario.name, name, requests)
		}
		all = append(all, c)
		return nil
	}
	if slices.ContainsFunc(j.strategies, func(n string) bool { return strategyOf(n).isOracle() }) {
		for _, name := range []string{bare, ours} {
			if !slices.Contains(j.strategies, name) {
				if err := add(name, true); err != nil {
					return err
				}
			}
		}
	}
	for _, name := range j.strategies {
		if err := add(name, false); err != nil {
			return err
		}
	}

	var oracles, others []*contender
	for _, c := range all {
		if c.strategy.isOracle() {
			oracles = append(oracles, c)
		} else {
			others = append(others, c)
		}
	}
	arrivals := virtual.NewDraws(j.seed)
	play := func(c *contender, n int) {
		if ctx.Err() == nil && err == nil {
			err = c.round(ctx, n, arrivals)
			c.task.set(c.done)
		}
	}
	planned := rounds
	for i := 0; i < planned && ctx.Err() == nil; i++ {
		started := time.Now()
		for k := range others { // another one begins each time
			play(others[(k+i)%len(others)], each)
		}
		if i == 0 && limit > 0 {
			round := time.Since(started) * time.Duration(len(all)) / time.Duration(max(len(others), 1))
			left := limit - started.Sub(began)
			planned = int(min(max(left/max(round, 1), 1), rounds))
		}
		// Oracles play in the second half, twice as much in each round: they need to know what the others did.
		if half := planned / 2; i >= half {
			for _, c := range oracles {
				c.delays = c.foresee(all)
				play(c, planned*each*(i+1-half)/(planned-half)-c.done)
			}
		}
	}
	if err != nil {
		return err
	}
	for _, c := range all {
		c.close()
		switch {
		case c.hidden:
		case ctx.Err() != nil && c.done < requests/rounds:
			c.task.drop()
		default:
			c.task.end(c.watch.read())
			keep(c.trial(string(l), j.scenario, j.seed))
		}
	}
	return ctx.Err()
}

// work returns how many requests each contender makes, how many of them in a
// round, and the time there is for all; 0: as long as it takes.
func (j job) work(w virtual.World) (requests, each int, limit time.Duration) {
	requests, limit = usual, usualTime
	if j.size.quick {
		requests, limit = max(quickUsual/j.share, quickLeast), quickTime
	}
	limit /= time.Duration(j.share)
	if j.size.requests > 0 {
		requests, limit = j.size.requests, 0
	}
	unit := 1 // what a round has whole ones of
	if j.scenario.lab != nil {
		requests = max(w.Episodes, 1) * w.Requests
		if w.Episodes > 0 {
			unit = w.Requests
		}
		if longest := labTime; limit > 0 {
			if j.size.quick {
				longest = quickLabTime
			}
			limit = min(limit, longest)
		}
	}
	units := requests / unit
	return requests, (units + rounds - 1) / rounds * unit, limit
}

// trueRate returns the requests per second for a strategy that is given them, and
// 0 if there is none. In a closed loop it is measured, see the function trueRate.
func (l loopback) trueRate(ctx context.Context, j job, w virtual.World) (float64, error) {
	i := slices.IndexFunc(j.strategies, func(n string) bool { return strategyOf(n).givenRate })
	if i < 0 {
		return 0, nil
	}
	if w.Workers == 0 {
		return w.Rate, nil
	}
	requests := calibration
	if j.size.quick {
		requests = quickCalibration
	}
	rate := float64(published.DefaultRPS)
	for range 2 {
		c, err := newContender(strategyOf(j.strategies[i]), string(l), j, w, requests, rate)
		if err != nil {
			return 0, err
		}
		err = c.round(ctx, requests, nil)
		c.close()
		if err != nil {
			return 0, err
		}
		rate = float64(c.done) / max(c.watch.read().Seconds(), 1e-3)
	}
	return rate, nil
}
