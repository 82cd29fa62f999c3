// Package estimate knows from what has ended how much longer goes on what has not: primaries
// that are still out, and bodies that pause.
package estimate

import (
	"math"
	"time"
)

// A Residual knows how much longer primaries take that are still out. Where
// hedges win that is hidden: a primary that was cut would have taken longer, and
// nobody knows how much. So it is estimated as lifetimes are when some of the
// observed leave early, by the product limit (Kaplan, Meier: "Nonparametric
// Estimation from Incomplete Observations", 1958).
//
// It remembers the last thousand or two of the primaries that reached their
// first delay, by fourths of an octave. The zero value is ready.
type Residual struct {
	ended, cut [octaves * 4]float32
	total      float32
}

const (
	octaves    = 32 // from a microsecond to an hour and more
	remembered = 2000
)

func slot(d time.Duration) int {
	i := int(4 * math.Log2(float64(max(d, time.Microsecond))/float64(time.Microsecond)))
	return min(i, octaves*4-1)
}

// middle returns the geometric mean of a slot's ends.
func middle(i int) time.Duration {
	return time.Duration(float64(time.Microsecond) * math.Exp2((float64(i)+0.5)/4))
}

// Add records a primary that ended by itself after d, or was cut then.
func (r *Residual) Add(d time.Duration, ended bool) {
	if r.total >= remembered {
		r.total = 0
		for i := range r.ended {
			r.ended[i] /= 2
			r.cut[i] /= 2
			r.total += r.ended[i] + r.cut[i]
		}
	}
	if ended {
		r.ended[slot(d)]++
	} else {
		r.cut[slot(d)]++
	}
	r.total++
}

// After returns how much longer a primary takes, on average, that has been out
// for d. What is beyond the slowest one known counts as nothing, and so does all of a nil Residual.
func (r *Residual) After(d time.Duration) time.Duration {
	if r == nil {
		return 0
	}
	var risk float32 // primaries known to have been out as long
	for i := slot(d); i < len(r.ended); i++ {
		risk += r.ended[i] + r.cut[i]
	}
	out, at, more := 1.0, d, 0.0
	for i := slot(d); i < len(r.ended) && risk > 0.5; i++ {
		ended, cut := r.ended[i], r.cut[i]
		if ended+cut == 0 {
			continue
		}
		next := max(at, middle(i))
		more += out * float64(next-at)
		out *= float64(1 - ended/risk)
		at, risk = next, risk-ended-cut
	}
	return time.Duration(more)
}
