// Package latency holds what benchmarks measure of calls.
package latency

import (
	"math"
	"slices"
	"time"
)

// A Call is a request as its caller saw it.
type Call struct {
	Start   time.Duration // since the beginning of the episode
	Latency time.Duration
	Index   int32 // in the episode
	Host    int16
	Winner  int8 // the attempt that answered; -1: the caller gave up, or was refused
	Hedges  uint8
	Denied  uint8 // hedges that were due and refused
}

// Failed reports whether the caller has no answer.
func (c Call) Failed() bool { return c.Winner < 0 }

// Answered returns what the calls that did not fail took, sorted.
func Answered(calls []Call) []time.Duration {
	var all []time.Duration
	for _, c := range calls {
		if !c.Failed() {
			all = append(all, c.Latency)
		}
	}
	slices.Sort(all)
	return all
}

// Quantile returns the smallest of the sorted values that a share q of them
// does not exceed, and 0 if there is none.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[Rank(q, len(sorted))]
}

// Rank returns the place of quantile q among n sorted values.
func Rank(q float64, n int) int {
	return min(max(int(math.Ceil(q*float64(n)-1e-9))-1, 0), n-1)
}
