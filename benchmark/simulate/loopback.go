package main

import (
	"context"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A loopbackEngine is the engine http or grpc of simulate; its string value is the name. It sends real requests with
// the real libraries. The server answers after the latency of the scenario, and stops when the request is cancelled.
//
// The strategies take turns in ten rounds, so that a disturbance of the machine affects all of them. CPU time is that
// of client and server together.
//
// Requests go over loopback sockets, or over the simulated network of a scenario, in memory, for half a minute at most.
type loopbackEngine string

func init() {
	registerEngine(10, loopbackEngine("http"))
	registerEngine(20, loopbackEngine("grpc"))
}

func (l loopbackEngine) spec() engineSpec {
	return engineSpec{
		name: string(l), description: "sends requests over " + string(l) + " to a server on this machine, with the real libraries",
		scenarios: l.scenarios(), maxTimerDelay: maxTimerDelay,
	}
}

// scenarios returns the scenarios that the engine can run over sockets: those whose field protocols contains its name.
func (l loopbackEngine) scenarios() []scenario {
	return slices.DeleteFunc(append(virtualScenarios(), networkScenarios()...), func(sc scenario) bool { return !slices.Contains(sc.protocols, string(l)) })
}

func (l loopbackEngine) supports(sc scenario, s strategy) bool {
	if l == "grpc" {
		return s.grpc != nil && s.runsIn(sc)
	}
	return s.http != nil && s.runsIn(sc)
}

const (
	roundCount = 10 // turns of each strategy

	// If the number of requests is not asked for, there are as many as the time allows.
	maxRequests    = 50_000 // of each strategy
	minRequests    = 300
	timeLimit      = 72 * time.Second
	quickTimeLimit = 15 * time.Second
	plannedShare   = 0.9 // of that time; the rest is for requests that take longer than expected

	networkTimeLimit      = 25 * time.Second // of a scenario with a simulated network
	quickNetworkTimeLimit = 2800 * time.Millisecond

	calibrationRequests      = 1_500 // requests to measure the rate by
	quickCalibrationRequests = 500
)

func (l loopbackEngine) runOnce(ctx context.Context, run scenarioRun, keep func(trial)) error {
	simulation := run.scenario.adjustedSimulation(run.size)
	t := roundRunner{scenarioRun: run, plan: run.newRequestSchedule(simulation), began: time.Now()}
	rate, err := l.measureSocketRequestRate(ctx, run, simulation)
	if err != nil {
		return err
	}
	defer t.endEpisodes()
	for _, name := range run.neededStrategies() {
		c, err := newContender(findStrategy(name), string(l), run, simulation, t.plan.requests, rate)
		if err != nil {
			return err
		}
		t.addContender(c)
	}
	if err := t.runRounds(ctx); err != nil {
		return err
	}
	t.endEpisodes()
	for _, c := range t.all {
		switch {
		case c.hidden:
		case ctx.Err() != nil && c.done < t.plan.requests/roundCount:
			c.task.markStopped()
		default:
			c.task.reportFinished(c.watch.read())
			keep(c.toTrial(string(l), run.scenario, run.seed))
		}
	}
	return ctx.Err()
}

// neededStrategies returns the selected strategies. If one of them has best static delays, it adds the two strategies
// from whose calls these delays are computed: the one without hedging and this library.
func (run scenarioRun) neededStrategies() []string {
	names := run.strategies
	if slices.ContainsFunc(names, func(n string) bool { return findStrategy(n).hasBestStaticDelays() }) {
		names = sortStrategyNames(append([]string{baselineStrategy, libraryStrategy}, names...))
	}
	return names
}

// A requestSchedule says how many requests each strategy sends in a run over sockets, and how long all strategies may take.
type requestSchedule struct {
	requests int
	perRound int           // requests in a round
	limit    time.Duration // of all contenders together; 0: none
}

// newRequestSchedule returns the schedule for the traffic of w. Unless -requests or a simulated network fixes the
// number of requests, there are as many as the time limit allows.
func (run scenarioRun) newRequestSchedule(w virtual.Simulation) requestSchedule {
	p := requestSchedule{requests: run.size.requests}
	if p.requests == 0 {
		p.limit = timeLimit / time.Duration(run.share)
		if run.size.quick {
			p.limit = quickTimeLimit / time.Duration(run.share)
		}
	}
	unit := 1 // what a round has whole ones of
	each := expectedTimePerRequest(w) * time.Duration(len(run.neededStrategies()))
	switch {
	case run.scenario.network != nil:
		p.requests = max(w.Episodes, 1) * w.Requests
		if w.Episodes > 0 {
			unit = w.Requests
		} else if w.Queue != nil {
			unit = p.requests / 5 // each round begins with empty queues
		}
		if p.limit > 0 && run.size.quick {
			p.limit = min(p.limit, quickNetworkTimeLimit)
		} else if p.limit > 0 {
			p.limit = min(p.limit, networkTimeLimit)
		}
	case p.limit > 0:
		p.requests = min(max(int(plannedShare*float64(p.limit)/float64(each)), minRequests), maxRequests) / roundCount * roundCount
	}
	units := p.requests / unit
	p.perRound = (units + roundCount - 1) / roundCount * unit
	return p
}

// expectedTimePerRequest returns the expected duration of a run with the traffic of w, divided by the number of requests. In
// a closed loop, it is the mean latency in virtual time, plus the overhead of sockets and timers, over the number of workers.
func expectedTimePerRequest(w virtual.Simulation) time.Duration {
	const added = 700 * time.Microsecond
	w.Episodes, w.Requests = 1, 2000
	if w.Workers == 0 {
		return time.Duration(1e9 / w.Rate)
	}
	calls := w.Run(context.Background(), 1, func() virtual.Policy { return virtual.StaticDelays{} }, nil)
	var sum time.Duration
	for _, c := range calls {
		sum += c.Latency + added
	}
	return sum / time.Duration(len(calls)*w.Workers)
}

// measureSocketRequestRate returns the number of requests per second in w for strategies that need it, or 0 if run has
// none of them. In a closed loop it depends on the latencies, so the function sends requests to measure it.
func (l loopbackEngine) measureSocketRequestRate(ctx context.Context, run scenarioRun, w virtual.Simulation) (float64, error) {
	i := slices.IndexFunc(run.strategies, func(n string) bool { return findStrategy(n).needsRate })
	if i < 0 {
		return 0, nil
	}
	if w.Workers == 0 {
		return w.Rate, nil
	}
	requests := calibrationRequests
	if run.size.quick {
		requests = quickCalibrationRequests
	}
	rate := float64(bhope.DefaultRPS)
	for range 2 {
		c, err := newContender(findStrategy(run.strategies[i]), string(l), run, w, requests, rate)
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

// A roundRunner runs contenders (strategies with a client and a server) in rounds. In a round, each contender sends
// some of its requests, so that a disturbance of the machine affects all.
type roundRunner struct {
	scenarioRun
	plan  requestSchedule
	began time.Time

	all, bestStatics, others []*contender
}

// addContender adds a strategy with its client and server to the rounds. If nobody selected it, it only runs for the
// computation of best static delays, and has no progress line and no results.
func (t *roundRunner) addContender(c *contender) {
	if c.hidden = !slices.Contains(t.strategies, c.strategy.name); !c.hidden {
		c.task = t.progress.addTask(t.scenario.name, c.strategy.name, t.plan.requests)
	}
	t.all = append(t.all, c)
	if c.strategy.hasBestStaticDelays() {
		t.bestStatics = append(t.bestStatics, c)
	} else {
		t.others = append(t.others, c)
	}
}

func (t *roundRunner) endEpisodes() {
	for _, c := range t.all {
		c.endEpisode()
	}
}

// runRounds lets each strategy send some requests in each round, in another order each time. It returns nil if ctx ends.
func (t *roundRunner) runRounds(ctx context.Context) (err error) {
	arrivals := virtual.NewRandomSource(t.seed)
	turn := func(c *contender, n int) {
		if ctx.Err() == nil && err == nil {
			stop := t.timers.startMeasuring()
			err = c.sendRound(ctx, n, arrivals)
			stop()
			c.task.setDone(c.done)
		}
	}
	planned := roundCount
	for i := 0; i < planned && ctx.Err() == nil; i++ {
		started := time.Now()
		for k := range t.others { // another one begins each time
			turn(t.others[(k+i)%len(t.others)], t.plan.perRound)
		}
		if t.plan.limit > 0 { // a slow machine plays fewer rounds
			round := time.Since(started) * time.Duration(len(t.all)) / time.Duration(max(len(t.others), 1))
			left := t.plan.limit - started.Sub(t.began)
			planned = min(planned, i+int(max(left/max(round, 1), 1)))
		}
		// The best static delays play in the second half, twice as much in each round: they need to know what the others did.
		if half := planned / 2; i >= half {
			for _, c := range t.bestStatics {
				c.config.delays = t.bestStaticDelays(c.strategy)
				turn(c, planned*t.plan.perRound*(i+1-half)/(planned-half)-c.done)
			}
		}
	}
	return err
}

// bestStaticDelays returns the delays, one for each hedge of s, that in hindsight minimize the minimizedQuantile of the
// calls without hedging so far. They cost at most as many hedges per request as this library has sent.
func (t *roundRunner) bestStaticDelays(s strategy) []time.Duration {
	var took []time.Duration
	var extra float64
	for _, other := range t.all {
		switch other.strategy.name {
		case baselineStrategy:
			took = latency.SortedLatencies(other.finishedCalls())
		case libraryStrategy:
			extra = hedgesPerRequest(other.finishedCalls())
		}
	}
	if len(took) == 0 {
		return nil
	}
	simulation := virtual.Simulation{Workers: 1, Requests: min(50_000, 20*len(took)), Model: virtual.EmpiricalLatency(took)}
	return simulation.BestStaticDelays(t.seed, s.bestStaticHedges, extra, s.minimizedQuantile())
}

func hedgesPerRequest(calls []latency.Call) float64 {
	hedges := 0
	for _, c := range calls {
		hedges += int(c.Hedges)
	}
	return float64(hedges) / float64(max(len(calls), 1))
}
