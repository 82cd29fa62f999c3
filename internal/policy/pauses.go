package policy

import (
	"math"
	"time"
)

const (
	minBodies      = 10                    // number of recorded bodies from which StallThreshold returns a threshold
	MinStall       = 50 * time.Millisecond // shortest pause that counts as a stall
	usualShare     = 0.95                  // quantile of the longest pauses that counts as the usual pause
	stallFactor    = 2                     // a pause is a stall if it is this many times as long as the usual pause
	maxBodySamples = 500                   // number of recorded bodies at which all counts are halved
)

// A pauseHistogram is a histogram of the longest pause in each of the last few hundred response bodies. It serves to detect
// bodies that stall. A pause is the time that one Read of the body waits for data. Bucket i spans a quarter of an octave, as
// in bucketIndex. [Key].mu guards it.
type pauseHistogram struct {
	longest [octaveCount * 4]float32 // number of bodies in each bucket
	total   float32                  // sum of the buckets
}

// Add records d, the longest pause of one response body.
func (p *pauseHistogram) Add(d time.Duration) {
	if p.total >= maxBodySamples {
		p.total = 0
		for i := range p.longest {
			p.longest[i] /= 2
			p.total += p.longest[i]
		}
	}
	p.longest[bucketIndex(d)]++
	p.total++
}

// StallThreshold returns the length from which a pause is a stall: twice the 95th percentile of the recorded pauses, and at
// least MinStall. It is 0 if fewer than ten bodies are recorded or p is nil.
func (p *pauseHistogram) StallThreshold() time.Duration {
	if p == nil || p.total < minBodies {
		return 0
	}
	above := float32(0)
	i := len(p.longest) - 1
	for ; i > 0 && above+p.longest[i] <= (1-usualShare)*p.total; i-- {
		above += p.longest[i]
	}
	edge := float64(time.Microsecond) * math.Exp2(float64(i+1)/4)
	return max(MinStall, time.Duration(stallFactor*edge))
}
