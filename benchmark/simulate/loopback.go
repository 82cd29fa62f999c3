package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// loopback sends real requests over loopback sockets, by the named protocol, to a server that sleeps as the scenario says and
// stops when the request is cancelled. The libraries are the real ones. The strategies take turns in ten rounds, so that a
// disturbance of the machine meets all of them. CPU time is that of client and server together.
//
// A scenario with a lab runs over a simulated network in memory instead, for half a minute at most. Tests run labs in fake time.
type loopback string

func init() {
	registerEngine(10, func() engine { return loopback("http") })
	registerEngine(20, func() engine { return loopback("grpc") })
}

func (l loopback) profile() profile {
	return profile{
		name: string(l), about: "sends requests over " + string(l) + " to a server on this machine, with the real libraries",
		scenarios: l.scenarios(), maxTimerDelay: maxTimerDelay,
	}
}

// scenarios returns the scenarios of the protocol. The server has no queues, no other hosts and no changes over time; some labs have.
func (l loopback) scenarios() []scenario {
	return slices.DeleteFunc(append(virtualScenarios(), labScenarios()...), func(sc scenario) bool { return !slices.Contains(sc.protocols, string(l)) })
}

func (l loopback) offers(sc scenario, s strategy) bool {
	if l == "grpc" {
		return s.grpc != nil && s.isFor(sc)
	}
	return s.http != nil && s.isFor(sc)
}

const (
	rounds = 10 // turns of each strategy

	// If the number of requests is not asked for, there are as many as the time allows.
	usual       = 50_000 // requests of each strategy, at most
	least       = 300    // at least
	usualTime   = 72 * time.Second
	quickTime   = 15 * time.Second
	plannedTime = 0.9 // of it; the rest is for what takes longer than expected

	labTime      = 25 * time.Second // of a scenario that has a lab
	quickLabTime = 2800 * time.Millisecond

	calibration      = 1_500 // requests to measure the rate by
	quickCalibration = 500
)

// run lets the contenders take turns.
func (l loopback) run(ctx context.Context, j job, keep func(trial)) error {
	world := j.scenario.worldOfSize(j.size)
	t := turns{job: j, plan: j.newPlan(world), began: time.Now()}
	rate, err := l.trueRate(ctx, j, world)
	if err != nil {
		return err
	}
	defer t.endEpisodes()
	for _, name := range j.contendersOfJob() {
		c, err := newContender(strategyOf(name), string(l), j, world, t.plan.requests, rate)
		if err != nil {
			return err
		}
		t.addContender(c)
	}
	if err := t.playRounds(ctx); err != nil {
		return err
	}
	t.endEpisodes()
	for _, c := range t.all {
		switch {
		case c.hidden:
		case ctx.Err() != nil && c.done < t.plan.requests/rounds:
			c.task.abandon()
		default:
			c.task.finishAfter(c.watch.read())
			keep(c.toTrial(string(l), j.scenario, j.seed))
		}
	}
	return ctx.Err()
}

// contendersOfJob are the strategies of the job, and the two that the best static delays are computed from.
func (j job) contendersOfJob() []string {
	names := j.strategies
	if slices.ContainsFunc(names, func(n string) bool { return strategyOf(n).isBestStatic() }) {
		names = inOrder(append([]string{baseline, ours}, names...))
	}
	return names
}

// A plan says how much each contender does.
type plan struct {
	requests int
	each     int           // requests in a round
	limit    time.Duration // of all contenders together; 0: none
	takes    time.Duration // for all contenders, about
}

func (j job) newPlan(w virtual.Simulation) plan {
	p := plan{requests: j.size.requests}
	if p.requests == 0 {
		p.limit = usualTime / time.Duration(j.share)
		if j.size.quick {
			p.limit = quickTime / time.Duration(j.share)
		}
	}
	unit := 1 // what a round has whole ones of
	each := expectedDuration(w) * time.Duration(len(j.contendersOfJob()))
	switch {
	case j.scenario.lab != nil:
		p.requests = max(w.Episodes, 1) * w.Requests
		if w.Episodes > 0 {
			unit = w.Requests
		} else if w.Queue != nil {
			unit = p.requests / 5 // each round begins with empty queues
		}
		if p.limit > 0 && j.size.quick {
			p.limit = min(p.limit, quickLabTime)
		} else if p.limit > 0 {
			p.limit = min(p.limit, labTime)
		}
	case p.limit > 0:
		p.requests = min(max(int(plannedTime*float64(p.limit)/float64(each)), least), usual) / rounds * rounds
	}
	p.takes = each * time.Duration(p.requests)
	if p.limit > 0 {
		p.takes = min(p.takes, p.limit)
	}
	units := p.requests / unit
	p.each = (units + rounds - 1) / rounds * unit
	return p
}

// expectedDuration returns the share of a run's duration that one request takes: its latency in virtual time, and the overhead of sockets
// and timers.
func expectedDuration(w virtual.Simulation) time.Duration {
	const added = 700 * time.Microsecond
	w.Episodes, w.Requests = 1, 2000
	if w.Workers == 0 {
		return time.Duration(1e9 / w.Rate)
	}
	calls := w.Run(context.Background(), 1, func() virtual.Policy { return virtual.NoHedging{} }, nil)
	var sum time.Duration
	for _, c := range calls {
		sum += c.Latency + added
	}
	return sum / time.Duration(len(calls)*w.Workers)
}

func (l loopback) estimate(jobs []job) (sum time.Duration) {
	for _, j := range jobs {
		sum += j.newPlan(j.scenario.worldOfSize(j.size)).takes
	}
	return sum
}

// trueRate returns the requests per second for a strategy that is given them, and
// 0 if there is none. In a closed loop it is measured, see the function trueRate.
func (l loopback) trueRate(ctx context.Context, j job, w virtual.Simulation) (float64, error) {
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
	rate := float64(bhope.DefaultRPS)
	for range 2 {
		c, err := newContender(strategyOf(j.strategies[i]), string(l), j, w, requests, rate)
		if err != nil {
			return 0, err
		}
		err = c.sendRound(ctx, requests, nil)
		c.endEpisode()
		if err != nil {
			return 0, err
		}
		rate = float64(c.done) / max(c.watch.read().Seconds(), 1e-3)
	}
	return rate, nil
}
