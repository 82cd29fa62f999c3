package policy

import (
	"math"
	"time"
)

// A residualTime estimates the remaining time of a primary that has not answered yet. A primary that was cancelled because a hedge won has
// a right-censored latency. So the estimate is the Kaplan-Meier estimator (Kaplan, Meier: "Nonparametric Estimation from Incomplete
// Observations", 1958).
//
// It holds a histogram of about the latest 1000 to 2000 primaries that reached their first delay. A bucket spans a quarter of an octave.
// The zero value is empty.
type residualTime struct {
	ended, cancelled [octaveCount * 4]float32
	total            float32
}

const (
	octaveCount        = 32 // from a microsecond to an hour and more
	maxResidualSamples = 2000
)

// bucketIndex returns the index of the histogram bucket for d. A bucket spans a quarter of an octave, and the first one begins at a
// microsecond.
func bucketIndex(d time.Duration) int {
	i := int(4 * math.Log2(float64(max(d, time.Microsecond))/float64(time.Microsecond)))
	return min(i, octaveCount*4-1)
}

// bucketMiddle returns the geometric mean of the ends of bucket i.
func bucketMiddle(i int) time.Duration {
	return time.Duration(float64(time.Microsecond) * math.Exp2((float64(i)+0.5)/4))
}

// Add records the latency d of a primary. If ended is false, the primary was cancelled after d.
func (r *residualTime) Add(d time.Duration, ended bool) {
	if r.total >= maxResidualSamples {
		r.total = 0
		for i := range r.ended {
			r.ended[i] /= 2
			r.cancelled[i] /= 2
			r.total += r.ended[i] + r.cancelled[i]
		}
	}
	if ended {
		r.ended[bucketIndex(d)]++
	} else {
		r.cancelled[bucketIndex(d)]++
	}
	r.total++
}

// After returns the mean remaining time of a primary that has not answered after d. It is 0 if d exceeds every recorded latency, or r is
// nil.
func (r *residualTime) After(d time.Duration) time.Duration {
	if r == nil {
		return 0
	}
	var risk float32 // primaries that are known to have taken as long
	for i := bucketIndex(d); i < len(r.ended); i++ {
		risk += r.ended[i] + r.cancelled[i]
	}
	out, at, more := 1.0, d, 0.0
	for i := bucketIndex(d); i < len(r.ended) && risk > 0.5; i++ {
		ended, cut := r.ended[i], r.cancelled[i]
		if ended+cut == 0 {
			continue
		}
		next := max(at, bucketMiddle(i))
		more += out * float64(next-at)
		out *= float64(1 - ended/risk)
		at, risk = next, risk-ended-cut
	}
	return time.Duration(more)
}
