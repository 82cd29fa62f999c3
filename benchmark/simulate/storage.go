package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/storelab"
)

func init() {
	registerHelperProcess(storelab.FakeTimeRun.Serve)
	registerEngine(70, func() engine { return storageEngine{} })
	registerMetrics(newEngineMetric(askedTwice, "asked twice %", 17, "%.2f"), newEngineMetric(sentTwice, "sent twice %", 18, "%.2f"))
	registerStrategies(
		strategy{
			name: "stall-timeout", rank: 1060,
			description: "as Google's client with WithReadStallTimeout: if the first byte does not come in 500 ms, or the 99th percentile if that is longer, it sends the request again after a pause",
		},
		strategy{name: "stall-timeout-20ms", rank: 1062, description: "the same with 20 ms instead of 500"},
		strategy{name: "parts-4", rank: 1064, description: "four parts of each range at the same time, as the downloader of the AWS SDK reads what is larger than its parts"},
		strategy{name: "hedge-resume", rank: 1070, description: "this library's Transport with WithResume"},
		strategy{name: storelab.Rangeread, rank: 1080, description: "this library's package of that name"},
	)
}

// Columns: bytes that were requested or sent more than once, in percent of the bytes that were read.
const (
	askedTwice = "asked_twice_pct"
	sentTwice  = "sent_twice_pct"
)

// storageEngine is the engine storage of simulate. It reads ranges of 1 MiB from an object in a simulated store that is
// 15 ms away, 16 ranges at a time. Time is fake, so the result depends on the seed alone.
//
// The libraries are the real ones, except hedgedhttp, which a fixed delay stands for. The clients of Google and AWS are
// written from their documentation; go -C integration run ./ranges/bench has the real ones.
//
// The first request for a range meets the same faults in all strategies.
type storageEngine struct{}

func (storageEngine) spec() engineSpec {
	return engineSpec{
		name: "storage", description: "reads ranges of an object from a simulated store that stalls, in fake time",
		scenarios: storageScenarios, refusal: "not a reader of ranges",
	}
}

func (storageEngine) supports(_ scenario, s strategy) bool {
	return slices.Contains(storelab.Contenders, s.name)
}

const quickReads = 2000

// storageScenarios has the scenarios of package storelab, for the engine storage.
var storageScenarios = func() []scenario {
	var all []scenario
	for _, s := range storelab.Scenarios {
		sc := scenario{name: s.Name, description: s.Description}
		if s.Name == "storage-slow" {
			slow := func(c latency.Call) bool { return storelab.IsSlowRead(c.Index) }
			sc.parts = []scenarioPart{{name: "slow", contains: slow}, {name: "others", contains: func(c latency.Call) bool { return !slow(c) }}}
		}
		all = append(all, sc)
	}
	return all
}()

func (storageEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: storage keeps %d reads in flight instead", j.size.rps, storelab.ConcurrentReads)
	}
	reads := j.requestCount(storelab.DefaultReads, quickReads)
	return runLab(ctx, j, "all in fake time", reads*len(j.strategies), keep, func(func(int)) ([]storelab.Row, error) {
		return storelab.FakeTimeRun.Run(ctx, storelab.Config{Scenario: j.scenario.name, Contenders: j.strategies, Reads: reads, Seed: j.seed})
	}, func(r storelab.Row) trial {
		t := j.newTrial("storage", r.Contender, r.Calls)
		t.engineFigures = func(_ string, calls []int) map[string]float64 { return excessBytesPercent(r.Traffic, calls) }
		return t
	})
}

// excessBytesPercent returns by how many percent the bytes that reads requested (key askedTwice) and received
// (sentTwice) exceed the bytes that were read. reads are indexes in traffic, which has the bytes of every read of a
// trial.
func excessBytesPercent(traffic []storelab.Traffic, reads []int) map[string]float64 {
	if len(reads) == 0 {
		return nil
	}
	var asked, sent int64
	for _, i := range reads {
		asked, sent = asked+traffic[i].Asked, sent+traffic[i].Sent
	}
	percent := func(n int64) float64 { return 100 * (float64(n)/(float64(len(reads))*storelab.ReadSize) - 1) }
	return map[string]float64{askedTwice: percent(asked), sentTwice: percent(sent)}
}
