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

// A job is one run of a scenario with one seed. It lists the strategies to run and the number of requests, and has the
// receivers of progress and of timer lateness.
type job struct {
	scenario   *scenario
	strategies []string
	seed       uint64
	size       size
	share      int // the job is one of that many, and gets its share of the time there is
	progress   *progress
	timers     *timerMonitor
	peers      dnsserver.Peers
	fake       bool // time, by testing/synctest
}

// requestCount returns the number of requests that each strategy sends. It is the value of -requests if that is set,
// else quick with the flag -quick, else usual.
func (j job) requestCount(usual, quick int) int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quick
	}
	return usual
}

// selectContenders returns the names in all that are strategies of the job, in the order of all. If all of them are, it
// returns nil: the lab then selects those that the scenario is for.
func (j job) selectContenders(all []string) []string {
	some := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(j.strategies, name) })
	if len(some) == len(all) {
		return nil
	}
	return some
}

// printSkipped prints that a contender is left out, and the reason, which begins with the name of its lab.
func (j job) printSkipped(reason string) {
	if _, after, found := strings.Cut(reason, "lab: "); found {
		reason = after
	}
	j.progress.printLine("left out: %s", reason)
}

// newTrial returns a trial of the job with the calls of one strategy. engine and strategy are names.
func (j job) newTrial(engine, strategy string, calls []latency.Call) trial {
	return trial{engine: engine, scenario: j.scenario, strategy: strategy, seed: j.seed, calls: calls}
}

// runLab runs a lab, a package that compares contenders, for job j, and passes its trials with calls to keep. how says how
// the strategies run, and calls is the number of calls of all of them, for the progress. measure runs the lab, and calls
// count with the number of further calls that are done. toTrial returns the trial of a row of the lab.
func runLab[R any](ctx context.Context, j job, how string, calls int, keep func(trial), measure func(count func(int)) ([]R, error), toTrial func(R) trial) error {
	task := j.progress.addTask(j.scenario.name, how, calls)
	var done atomic.Int64
	began := time.Now()
	defer j.timers.measure()()
	rows, err := measure(func(n int) { task.setDone(int(done.Add(int64(n)))) })
	if err != nil && (ctx.Err() == nil || len(rows) == 0) {
		task.abandon()
		return err
	}
	for _, r := range rows {
		if t := toTrial(r); len(t.calls) > 0 {
			keep(t)
		}
	}
	task.finishAfter(time.Since(began))
	return err
}

// runScenarios runs all selected scenarios with the selected engine, and shows progress in p. If ctx ends, it returns
// the results so far and an error.
func runScenarios(ctx context.Context, o options, p *progress) (found engineResults, err error) {
	found.options = o
	jobs := o.listJobs(p)
	engine := o.engine.profile()
	if engine.runsInRealTime() {
		t := new(timerMonitor)
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
	t := new(timerMonitor)
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

// runScenario runs one scenario and returns the joined results of its runs, which differ by their seeds. t measures the
// lateness of timers meanwhile. After an error it returns the results so far.
func runScenario(ctx context.Context, o options, runs []job, t *timerMonitor) (f scenarioResults, err error) {
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

// listJobs returns a job for each run of each selected scenario, grouped by scenario. The runs of a scenario have
// successive seeds. The jobs show progress in p.
func (o options) listJobs(p *progress) []job {
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
