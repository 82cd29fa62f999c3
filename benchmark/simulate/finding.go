package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// findings are the results of all scenarios.
type findings struct {
	options   options
	scenarios []finding
	late      time.Duration // see timers.p99
}

// A finding is the results of all strategies in one scenario.
type finding struct {
	scenario scenario
	results  []result
}

// simulate does what the options say, and returns what it has when ctx ends.
func simulate(ctx context.Context, o options, p *progress) (found findings, err error) {
	found.options = o
	jobs := o.jobs(p)
	if o.engine.realTime() {
		t := new(timers)
		stop := t.watch()
		time.Sleep(timersFirst)
		stop()
		if late := t.p99(); late > o.tooLate() {
			p.say("%s", o.busy(late))
		}
	}
	if takes := o.engine.takes(jobs); takes > time.Second {
		p.say("%s: %s", o.engine.name(), about(takes))
	}
	t := new(timers)
	defer func() { found.late = t.p99() }()
	for len(jobs) > 0 {
		runs := jobs[:o.runs]
		jobs = jobs[o.runs:]
		var (
			mu   sync.Mutex
			done = make(map[string][]result)
		)
		for _, j := range runs {
			j.timers = t
			err = o.engine.run(ctx, j, func(t trial) {
				r := t.result()
				mu.Lock()
				defer mu.Unlock()
				done[t.strategy] = append(done[t.strategy], r)
			})
			if err != nil {
				break
			}
		}
		f := finding{scenario: *runs[0].scenario}
		f.scenario.about = f.scenario.sizedAbout(o.size)
		for _, name := range runs[0].strategies {
			if all := done[name]; len(all) > 0 {
				slices.SortFunc(all, func(a, b result) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
				f.results = append(f.results, median(all))
			}
		}
		if len(f.results) > 0 {
			found.scenarios = append(found.scenarios, f)
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// jobs are the runs of each scenario.
func (o options) jobs(p *progress) []job {
	var all []job
	for _, sc := range o.scenarios {
		for i := range o.runs {
			all = append(all, job{
				scenario: &sc, strategies: o.contenders(sc), seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p,
			})
		}
	}
	return all
}

// rows returns all rows: a scenario's whole for each strategy, then its parts.
func (f findings) rows() []row {
	var all []row
	for _, s := range f.scenarios {
		all = append(all, s.rows()...)
	}
	return all
}

func (f finding) rows() []row {
	var all []row
	for i := range 1 + len(f.scenario.parts) {
		for _, r := range f.results {
			all = append(all, r.rows[i])
		}
	}
	return all
}

// shown returns the rows for tables for people. A part may be later than all that was run; then its rows are left out.
func (f finding) shown() []row {
	return slices.DeleteFunc(f.rows(), func(r row) bool { return r.Requests == 0 && r.Scenario != f.scenario.name })
}

// requests says how many requests each strategy made.
func (f finding) requests() string {
	var all []int
	for _, r := range f.results {
		all = append(all, r.rows[0].Requests)
	}
	if len(all) == 0 {
		return "no requests"
	}
	if least, most := slices.Min(all), slices.Max(all); least != most {
		return fmt.Sprintf("%s to %s requests for each strategy", thousands(least), thousands(most))
	}
	return thousands(all[0]) + " requests for each strategy"
}
