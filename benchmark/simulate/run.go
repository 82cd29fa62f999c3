package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A job is one run of strategies in a scenario, with one seed for all random numbers.
type job struct {
	scenario   *scenario
	strategies []string
	seed       uint64
	size       trafficFlags
	share      int // number of jobs among which the available time is divided equally
	progress   *progressDisplay
	timers     *timerMonitor
	peers      dnsserver.Peers
	fake       bool // time, by testing/synctest
}

// requestCount returns the number of requests of each strategy: -requests, or quick with -quick, or usual.
func (j job) requestCount(usual, quick int) int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quick
	}
	return usual
}

// selectContenders returns the names in all that are strategies of the job. It returns nil if all of them are, so that
// the lab selects the contenders of the scenario.
func (j job) selectContenders(all []string) []string {
	some := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(j.strategies, name) })
	if len(some) == len(all) {
		return nil
	}
	return some
}

// printSkipped prints the reason for which a contender is skipped. The reason begins with the name of the lab.
func (j job) printSkipped(reason string) {
	if _, after, found := strings.Cut(reason, "lab: "); found {
		reason = after
	}
	j.progress.printLine("left out: %s", reason)
}

// newTrial returns a trial of the job with the calls of one strategy.
func (j job) newTrial(engine, strategy string, calls []latency.Call) trial {
	return trial{engine: engine, scenario: j.scenario, strategy: strategy, seed: j.seed, calls: calls}
}

// runLab runs the scenario of job j by a lab, a package that compares contenders. measure runs the lab and returns a
// row for each contender. toTrial converts a row to a trial, which runLab passes to keep.
//
// The other parameters are for the progress. how says in which way the strategies run. calls is the number of calls of
// all strategies. measure passes the number of further finished calls to the function count.
func runLab[R any](ctx context.Context, j job, how string, calls int, keep func(trial), measure func(count func(int)) ([]R, error), toTrial func(R) trial) error {
	task := j.progress.addTask(j.scenario.name, how, calls)
	var done atomic.Int64
	began := time.Now()
	defer j.timers.startMeasuring()()
	rows, err := measure(func(n int) { task.setDone(int(done.Add(int64(n)))) })
	if err != nil && (ctx.Err() == nil || len(rows) == 0) {
		task.markStopped()
		return err
	}
	for _, r := range rows {
		if t := toTrial(r); len(t.calls) > 0 {
			keep(t)
		}
	}
	task.reportFinished(time.Since(began))
	return err
}

// runScenarios runs the selected scenarios with the selected engine, and shows the progress in p. If ctx ends, it
// returns the results so far and an error.
func runScenarios(ctx context.Context, o options, p *progressDisplay) (found engineResults, err error) {
	found.options = o
	jobs := o.newJobs(p)
	engine := o.engine.spec()
	if engine.runsInRealTime() {
		t := new(timerMonitor)
		stop := t.startMeasuring()
		time.Sleep(initialTimerTime)
		stop()
		if late := t.p99Delay(); late > engine.maxTimerDelay {
			p.printLine("%s", engine.busyWarning(late))
		}
	}
	t := new(timerMonitor)
	defer func() { found.timerDelay = t.p99Delay() }()
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

// runScenario does all runs of one scenario and returns the joined results. t measures the lateness of timers. After an
// error, the results are those so far.
func runScenario(ctx context.Context, o options, runs []job, t *timerMonitor) (f scenarioResults, err error) {
	var (
		mu   sync.Mutex
		done = make(map[string][]strategyResult)
	)
	for _, j := range runs {
		j.timers = t
		err = o.engine.runJob(ctx, j, func(t trial) {
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
	f.scenario.description = f.scenario.describeWithSize(o.size)
	for _, name := range runs[0].strategies {
		if all := done[name]; len(all) > 0 {
			slices.SortFunc(all, func(a, b strategyResult) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
			f.results = append(f.results, joinRuns(all))
		}
	}
	return f, err
}

// newJobs returns a job for each run of each selected scenario, grouped by scenario, with consecutive seeds.
func (o options) newJobs(p *progressDisplay) []job {
	var all []job
	for _, sc := range o.scenarios {
		for i := range o.runs {
			all = append(all, job{
				scenario: &sc, strategies: o.selectStrategies(sc), seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p, peers: o.peers,
			})
		}
	}
	return all
}
