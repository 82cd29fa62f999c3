package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// findings are what was found out.
type findings struct {
	options   options
	scenarios []finding
}

// A finding is what the strategies did in one scenario.
type finding struct {
	scenario scenario
	results  []result
}

// simulate does what the options say, and returns what it has when ctx ends.
func simulate(ctx context.Context, o options, p *progress) (findings, error) {
	found := findings{options: o}
	for _, sc := range o.scenarios {
		names := o.contenders(sc)
		var (
			mu   sync.Mutex
			done = make(map[string][]result)
			err  error
		)
		for i := range o.runs {
			j := job{
				scenario: sc, strategies: names, seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p,
			}
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
		f := finding{scenario: sc}
		for _, name := range names {
			if runs := done[name]; len(runs) > 0 {
				slices.SortFunc(runs, func(a, b result) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
				f.results = append(f.results, median(runs))
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
