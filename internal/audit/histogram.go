package audit

import (
	"math"

	"github.com/gohedge/hedge/sketch"
)

const (
	bins      = 32  // of latencies
	perOctave = 3   // bins
	tailShare = 0.1 // of the calls, the slowest: those that hedging is about
)

// octave is the number of indices between a latency and twice that, see [sketch.Index].
var octave = float64(sketch.Index(1<<50)-sketch.Index(1<<20)) / 30

// A histogram counts latencies, by thirds of an octave from a base that is half the mean. Faster ones are in
// the first bin, and slower ones in the last. If a bin is full, all are halved: only their proportions matter.
type histogram [bins]uint16

func (h *histogram) add(i int) {
	i = min(max(i, 0), bins-1)
	if h[i] == math.MaxUint16 {
		for j := range h {
			h[j] /= 2
		}
	}
	h[i]++
}

// tail returns the mean place of the slowest calls, in octaves.
func (h *histogram) tail() float64 {
	total := 0
	for _, n := range h {
		total += int(n)
	}
	most := tailShare * float64(total)
	left, sum := most, 0.0
	for i := bins - 1; i >= 0 && left > 0; i-- {
		n := min(float64(h[i]), left)
		sum += n * float64(i)
		left -= n
	}
	return sum / most / perOctave
}

// tails are the latencies of probes: with hedging, and without.
type tails struct {
	pair [2]histogram     // this pair's
	all  [2][bins]float32 // those of all pairs of the evidence
}

// keep adds this pair to all.
func (t *tails) keep() {
	for arm := range t.pair {
		for i, n := range t.pair[arm] {
			t.all[arm][i] += float32(n)
		}
	}
}

// scale forgets a part of all.
func (t *tails) scale(f float32) {
	for arm := range t.all {
		for i := range t.all[arm] {
			t.all[arm][i] *= f
		}
	}
}

// p99 returns the 99th percentile of all calls of an arm in nanoseconds, or 0 if too few calls tell it.
// The first bin begins at the index base.
func (t *tails) p99(arm, base int) float64 {
	var total float64
	for _, n := range t.all[arm] {
		total += float64(n)
	}
	above := 0.01 * total
	if total < minCalls {
		return 0
	}
	for i := bins - 1; i > 0; i-- {
		n := float64(t.all[arm][i])
		if n < above {
			above -= n
			continue
		}
		if i == bins-1 {
			return 0
		}
		at := float64(base) + (float64(i+1)-above/n)*octave/perOctave
		return math.Exp2(20 + (at-float64(sketch.Index(1<<20)))/octave)
	}
	return 0
}
