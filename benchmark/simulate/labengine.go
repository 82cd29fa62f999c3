package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A labEngine is an engine whose scenarios and strategies come from a lab: a package with an experiment, for example
// cachelab for DNS servers with caches. A lab calls strategies contenders. R is the type of its results.
type labEngine[R interface{ CommonRow() lab.Row }] struct {
	engineSpec
	contenders func(scenario string) []string // that can run in the scenario
	how        string                         // the contenders run, for the progress: at once or in turn
	calls      func(scenarioRun) int          // of each contender
	fixedRate  string                         // the reason for which -rps is an error; empty: it is none
	run        func(context.Context, lab.Config) ([]R, error)

	// complete sets the figures of a trial that only this lab has; nil: it has none.
	complete func(scenarioRun, *trial, R)
}

func (e labEngine[R]) spec() engineSpec { return e.engineSpec }

func (e labEngine[R]) supports(sc scenario, s strategy) bool {
	return slices.Contains(e.contenders(sc.name), s.name)
}

func (e labEngine[R]) runOnce(ctx context.Context, run scenarioRun, keep func(trial)) error {
	if e.fixedRate != "" && run.size.rps > 0 {
		return fmt.Errorf("-rps %v: %s", run.size.rps, e.fixedRate)
	}
	conf := lab.Config{
		Scenario: run.scenario.name, Contenders: run.strategies, Calls: e.calls(run), Rate: run.size.rps, Seed: run.seed, Transport: run.transport, Peers: run.peers,
	}
	task := run.progress.addTask(run.scenario.name, e.how, conf.Calls*len(conf.Contenders))
	var done atomic.Int64
	conf.Progress = func(n int) { task.setDone(int(done.Add(int64(n)))) }
	conf.Skipped = func(reason string) { run.progress.printLine("left out: %s", reason) }
	began := time.Now()
	defer run.timers.startMeasuring()()
	rows, err := e.run(ctx, conf)
	if err != nil && (ctx.Err() == nil || len(rows) == 0) {
		task.markStopped()
		return err
	}
	for _, r := range rows {
		if t := run.newLabTrial(e.name, r.CommonRow()); len(t.calls) > 0 {
			if e.complete != nil {
				e.complete(run, &t, r)
			}
			keep(t)
		}
	}
	task.reportFinished(time.Since(began))
	return err
}

// newLabTrial converts r, the result for one strategy of a lab (a package with an experiment), to a trial of the run.
func (run scenarioRun) newLabTrial(engine string, r lab.Row) trial {
	t := run.newTrial(engine, r.Contender, r.Calls)
	t.denied, t.failures = int(r.Denied), r.Failures
	if r.Sent > 0 {
		sent := roundToFourDecimals(r.SentPerCall())
		t.sent, t.counted = &sent, &r
	}
	if r.CPU > 0 {
		each := roundToFourDecimals(float64(r.CPU.Microseconds()) / float64(r.Asked))
		t.cpu = &each
	}
	return t
}

// newLabScenarios converts the scenarios of a lab, a package with an experiment, to scenarios of simulate. It puts
// prefix before each description. The functions in changes modify each scenario.
func newLabScenarios(prefix string, all []lab.Scenario, changes ...func(*scenario)) (scenarios []scenario) {
	for _, s := range all {
		sc := scenario{name: s.Name, description: prefix + s.Description}
		for _, change := range changes {
			change(&sc)
		}
		scenarios = append(scenarios, sc)
	}
	return scenarios
}

// divideByIndex divides the calls of a scenario, numbered in their order, into two parts with table rows of their own.
// The part with the given name has the calls for whose index contains returns true; the part others has the rest.
func divideByIndex(name string, contains func(index int32) bool) []scenarioPart {
	return []scenarioPart{
		{name: name, contains: func(c latency.Call) bool { return contains(c.Index) }},
		{name: "others", contains: func(c latency.Call) bool { return !contains(c.Index) }},
	}
}
