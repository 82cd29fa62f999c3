package policy

import (
	"math"
	"time"
)

// A residualTimeEstimator estimates how long a primary that has not responded yet would still take. It serves to estimate how much
// time hedges have saved.
//
// A primary that was cancelled because a hedge won has a right-censored latency. Therefore the estimate uses the
// Kaplan-Meier estimator (Kaplan, Meier: "Nonparametric Estimation from Incomplete Observations", 1958).
//
// It holds a histogram of the latest 1000 to 2000 primaries that reached their first hedge delay. A bucket spans a quarter
// of an octave. The zero value is an empty histogram. [Key].mu guards it.
type residualTimeEstimator struct {
	// ended counts the primaries that ended by themselves, and cancelled those that were cancelled, by bucketIndex of their
	// latency.
	ended, cancelled [octaveCount * 4]float32
	total            float32 // sum of all counts
}

const (
	octaveCount        = 32   // histograms range from a microsecond to more than an hour
	maxResidualSamples = 2000 // sum at which all counts are halved
)

// bucketIndex returns the index of the histogram bucket that contains d. Buckets have logarithmic widths: each spans a quarter
// of an octave. The first bucket starts at one microsecond, and the last bucket contains all longer durations.
func bucketIndex(d time.Duration) int {
	i := int(4 * math.Log2(float64(max(d, time.Microsecond))/float64(time.Microsecond)))
	return min(i, octaveCount*4-1)
}

// bucketMiddle returns the geometric mean of the lower and upper bound of bucket i.
func bucketMiddle(i int) time.Duration {
	return time.Duration(float64(time.Microsecond) * math.Exp2((float64(i)+0.5)/4))
}

// Add records the latency d of a primary. If ended is false, the primary was cancelled after d, so d is only a lower bound
// of its latency.
func (r *residualTimeEstimator) Add(d time.Duration, ended bool) {
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

// RemainingAfter returns the estimated mean of the remaining time of a primary that has not responded after d. It returns 0 if all
// recorded latencies are shorter than d, or if r is nil.
func (r *residualTimeEstimator) RemainingAfter(d time.Duration) time.Duration {
	if r == nil {
		return 0
	}
	var risk float32 // number of primaries that took at least as long as the current bucket
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
