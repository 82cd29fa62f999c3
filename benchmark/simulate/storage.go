package main

import (
	"fmt"

	"github.com/gohedge/hedge/benchmark/storelab"
)

func init() {
	registerEngine(70, storageEngine)
	registerMetrics(newEngineMetric(askedTwiceMetric, "asked twice %", 17, "%.2f"), newEngineMetric(sentTwiceMetric, "sent twice %", 18, "%.2f"))
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
	askedTwiceMetric = "asked_twice_pct"
	sentTwiceMetric  = "sent_twice_pct"
)

// storageEngine is the engine storage of simulate. It reads ranges of 1 MiB from an object in a simulated store that is
// 15 ms away, 16 ranges at a time. Time is fake, so the result depends on the seed alone. The first request for a range
// meets the same faults in all strategies.
//
// The libraries are the real ones, except hedgedhttp, which a fixed delay stands for. The clients of Google and AWS are
// written from their documentation; go -C integration run ./ranges/bench has the real ones.
var storageEngine = labEngine[storelab.Row]{
	engineSpec: engineSpec{
		name: "storage", description: "reads ranges of an object from a simulated store that stalls, in fake time",
		scenarios: newLabScenarios("", storelab.Scenarios, func(sc *scenario) {
			if sc.name == "storage-slow" {
				sc.parts = divideByIndex("slow", storelab.IsSlowRead)
			}
		}),
		refusal: "not a reader of ranges",
	},
	contenders: func(string) []string { return storelab.Contenders },
	how:        "all in fake time", run: storelab.FakeTimeRun.Run,
	calls:     func(run scenarioRun) int { return run.requestCount(storelab.DefaultReads, 2000) },
	fixedRate: fmt.Sprintf("storage keeps %d reads in flight instead", storelab.ConcurrentReads),
	complete: func(_ scenarioRun, t *trial, r storelab.Row) {
		t.engineFigures = func(_ string, calls []int) map[string]float64 { return excessBytesPercent(r.Traffic, calls) }
	},
}

// excessBytesPercent returns by how many percent the bytes that reads requested (key askedTwiceMetric), and that the
// store sent (sentTwiceMetric), exceed the bytes read. reads are indexes in traffic, the bytes of every read of a trial.
func excessBytesPercent(traffic []storelab.Traffic, reads []int) map[string]float64 {
	if len(reads) == 0 {
		return nil
	}
	var asked, sent int64
	for _, i := range reads {
		asked, sent = asked+traffic[i].Asked, sent+traffic[i].Sent
	}
	percent := func(n int64) float64 { return 100 * (float64(n)/(float64(len(reads))*storelab.ReadSize) - 1) }
	return map[string]float64{askedTwiceMetric: percent(asked), sentTwiceMetric: percent(sent)}
}
