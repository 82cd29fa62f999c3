package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/storelab"
	"github.com/gohedge/hedge/rangeread"
)

// storageEngine reads ranges of an object from a simulated object store, in fake time.
type storageEngine struct{}

func (storageEngine) name() string                       { return "storage" }
func (storageEngine) runs(sc scenario) bool              { return sc.storage }
func (storageEngine) offers(_ scenario, s strategy) bool { return s.storage }
func (storageEngine) realTime() bool                     { return false }
func (storageEngine) traits() traits                     { return traits{refuses: "not a reader of ranges"} }

const (
	quickReads = 2000
	readTakes  = 60 * time.Microsecond // of this machine's time, about
)

// storageScenarios are package storelab's.
var storageScenarios = func() []scenario {
	var all []scenario
	for _, name := range storelab.Worlds {
		sc := scenario{name: name, about: storelab.About[name], storage: true}
		if name == "storage-slow" {
			slow := func(c latency.Call) bool { return storelab.Slow(c.Index) }
			sc.parts = []part{{name: "slow", in: slow}, {name: "others", in: func(c latency.Call) bool { return !slow(c) }}}
		}
		all = append(all, sc)
	}
	return all
}()

// ranges is how many each contender reads.
func (j *job) ranges() int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quickReads
	}
	return storelab.Reads
}

func (storageEngine) takes(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		total += time.Duration(j.ranges()*len(j.strategies)) * readTakes
	}
	return total
}

func (storageEngine) run(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: storage keeps %d reads in flight instead", j.size.rps, storelab.Workers)
	}
	task := j.progress.begin(j.scenario.name, "all in fake time", j.ranges()*len(j.strategies))
	began := time.Now()
	rows, err := storelab.RunFake(ctx, storelab.Config{World: j.scenario.name, Contenders: j.strategies, Reads: j.ranges(), Seed: j.seed})
	if err != nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		keep(trial{engine: "storage", scenario: j.scenario, strategy: r.Contender, seed: j.seed, calls: r.Calls, traffic: r.Traffic})
	}
	task.end(time.Since(began))
	return nil
}

// storageBounds are those of rangeread. The burst of its budget of bytes, which is there once, is taken from what it asks for.
var storageBounds = func() []bound {
	p50 := func(r row) float64 { return r.P50 }
	p99 := func(r row) float64 { return r.P99 }
	sent := func(r row) float64 { return 100 + *r.SentTwice }
	const burst = 100 * 4 * rangeread.DefaultPartSize / storelab.Size
	asked := func(r row) float64 { return 100 + max(0, *r.AskedTwice-burst/float64(r.Requests)) }
	const share = 1 + rangeread.DefaultBudgetPercent/100.
	return []bound{
		{"storage", "p99", bare, 0.1, p99},
		{"storage", "bytes sent", bare, 1.03, sent},
		{"storage", "bytes asked for (but for one burst)", bare, share, asked},
		{"storage-still", "p50", bare, 1.01, p50},
		{"storage-still", "bytes sent", bare, 1.01, sent},
		{"storage-slow", "bytes sent", bare, 1.03, sent},
		{"storage-slow", "bytes asked for (but for one burst)", bare, share, asked},
	}
}()

// storageBoundLines say what is required of rangeread, and whether that is so.
func (f findings) storageBoundLines() (lines []string) {
	for _, s := range f.scenarios {
		if s.scenario.storage {
			lines = append(lines, s.ratios(storelab.Rangeread, storageBounds)...)
		}
	}
	return lines
}
