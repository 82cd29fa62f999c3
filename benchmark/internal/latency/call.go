// Package latency has the measured calls of benchmarks and their quantiles.
package latency

import (
	"math"
	"slices"
	"time"
)

// A Call is the measurement of one call: the start time, the latency, the winning attempt, and the number of hedges.
type Call struct {
	Start   time.Duration // since the start of the run, or of its episode
	Latency time.Duration
	Index   int32 // in the run or episode
	Host    int16
	Winner  int8 // number of the attempt that answered; -1: the call failed
	Hedges  uint8
	Denied  uint8 // hedges that were due and not allowed
}

// Failed reports whether the call ended without an answer, which its Winner says.
func (c Call) Failed() bool { return c.Winner < 0 }

// SortedLatencies returns the latencies of the calls that did not fail, in ascending order.
func SortedLatencies(calls []Call) []time.Duration {
	var all []time.Duration
	for _, c := range calls {
		if !c.Failed() {
			all = append(all, c.Latency)
		}
	}
	slices.Sort(all)
	return all
}

// Quantile returns quantile q, from 0 to 1, of sorted by the nearest-rank method, or 0 if sorted is empty.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[NearestRank(q, len(sorted))]
}

// NearestRank returns the index of quantile q in n sorted values by the nearest-rank method, with q from 0 to 1.
func NearestRank(q float64, n int) int {
	return min(max(int(math.Ceil(q*float64(n)-1e-9))-1, 0), n-1)
}
