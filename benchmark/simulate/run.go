package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A job is one run of a scenario.
type job struct {
	scenario   *scenario
	strategies []string
	seed       uint64
	size       size
	share      int // the job is one of that many, and gets its share of the time there is
	progress   *progress
	timers     *timers
	fake       bool // time, by testing/synctest
}

// requestCount returns the number of requests of each strategy: as many as the flags say, or else one of the two.
func (j job) requestCount(usual, quick int) int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quick
	}
	return usual
}

// someOf returns the strategies of the job that are in all, in the order of all. It returns nil if the job has all of them: a lab then
// leaves out the ones that cannot run here.
func (j job) someOf(all []string) []string {
	some := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(j.strategies, name) })
	if len(some) == len(all) {
		return nil
	}
	return some
}

// newTrial returns a trial of the job.
func (j job) newTrial(engine, strategy string, calls []latency.Call) trial {
	return trial{engine: engine, scenario: j.scenario, strategy: strategy, seed: j.seed, calls: calls}
}

// runScenarios runs the scenarios that the options name, and returns the results that it has when ctx ends.
func runScenarios(ctx context.Context, o options, p *progress) (found findings, err error) {
	found.options = o
	jobs := o.listJobs(p)
	engine := o.engine.profile()
	if engine.runsInRealTime() {
		t := new(timers)
		stop := t.measure()
		time.Sleep(timersFirst)
		stop()
		if late := t.p99(); late > engine.maxTimerDelay {
			p.printLine("%s", engine.busyText(late))
		}
	}
	if duration := o.engine.estimate(jobs); duration > time.Second {
		p.printLine("%s: %s", engine.name, formatDuration(duration))
	}
	t := new(timers)
	defer func() { found.late = t.p99() }()
	for len(jobs) > 0 {
		runs := jobs[:o.runs]
		jobs = jobs[o.runs:]
		f, err := runScenario(ctx, o, runs, t)
		if len(f.results) > 0 {
			found.scenarios = append(found.scenarios, f)
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// runScenario does the jobs of one scenario.
func runScenario(ctx context.Context, o options, runs []job, t *timers) (f finding, err error) {
	var (
		mu   sync.Mutex
		done = make(map[string][]result)
	)
	for _, j := range runs {
		j.timers = t
		err = o.engine.run(ctx, j, func(t trial) {
			r := t.toResult()
			mu.Lock()
			defer mu.Unlock()
			done[t.strategy] = append(done[t.strategy], r)
		})
		if err != nil {
			break
		}
	}
	f.scenario = *runs[0].scenario
	f.scenario.about = f.scenario.sizedAbout(o.size)
	for _, name := range runs[0].strategies {
		if all := done[name]; len(all) > 0 {
			slices.SortFunc(all, func(a, b result) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
			f.results = append(f.results, joinRuns(all))
		}
	}
	return f, err
}

// listJobs are the runs of each scenario.
func (o options) listJobs(p *progress) []job {
	var all []job
	for _, sc := range o.scenarios {
		for i := range o.runs {
			all = append(all, job{
				scenario: &sc, strategies: o.selectStrategies(sc), seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p,
			})
		}
	}
	return all
}
