package policy

import (
	"math"
	"time"
)

const (
	minBodies      = 10                    // must be known
	MinStall       = 50 * time.Millisecond // shortest pause that counts as a stall
	usualShare     = 0.95                  // share of the bodies whose longest pause is usual
	stallFactor    = 2                     // a pause that is so many times as long as the usual pause is a stall
	maxBodySamples = 500
)

// A pauseLengths is a histogram of the longest pause of each of the last few hundred response bodies, by fourths of an octave.
// A pause is the time that a reader waits for more of a body.
type pauseLengths struct {
	longest [octaveCount * 4]float32
	total   float32
}

// Add records d, the longest time for which a Read of one body waited for data.
func (p *pauseLengths) Add(d time.Duration) {
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

// StallThreshold returns twice the longest pause of 95 % of the bodies, and at least MinStall. It is 0 until ten bodies are recorded.
func (p *pauseLengths) StallThreshold() time.Duration {
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
