package audit

import (
	"math"
	"slices"
)

const (
	levelsKept  = 10 // slots
	recallSlots = 3  // slots in a row at the level of the other verdict bring that back
	recallPairs = 2  // pairs in a row at the level of a former verdict bring that back while there is none
)

// levelRise is how far a level, in indices, must be from another to count as changed: by 30 %.
var levelRise = math.Log2(1.3) * octave

// levels know how high latencies are, and how high they were when a verdict was found: where they
// change, the verdict is in doubt. A level is the mean of a slot in indices, see [sketch.Index].
type levels struct {
	slots  [levelsKept]float32         // the last ones, latest first: with hedging if the verdict is helpful, without if it is harmful
	filled int                         // of slots; while there is no verdict, pairs in a row with levels like those of one
	like   verdict                     // that one
	pairs  [2]struct{ sum, n float64 } // since the verdict: with hedging, without
	judged [verdicts][2]float64        // at which a verdict was found: with hedging, without; 0: none
}

// pair takes the levels of a pair.
func (l *levels) pair(lit, dark float64) {
	for i, level := range [2]float64{lit, dark} {
		l.pairs[i].sum += level
		l.pairs[i].n++
	}
}

// rose reports whether the level of the last pair's dark slot is another than that of the pairs before.
func (l *levels) rose(dark float64) bool {
	before := (l.pairs[1].sum - dark) / (l.pairs[1].n - 1)
	return math.Abs(dark-before) > levelRise
}

// halve forgets half of the pairs.
func (l *levels) halve() {
	for i := range l.pairs {
		l.pairs[i].sum, l.pairs[i].n = l.pairs[i].sum/2, l.pairs[i].n/2
	}
}

// begin begins anew after a verdict. What was judged stays.
func (l *levels) begin() {
	l.filled = 0
	l.pairs = [2]struct{ sum, n float64 }{}
}

// hadVerdict reports whether there are levels at which a verdict was found.
func (l *levels) hadVerdict() bool { return l.judged != [verdicts][2]float64{} }

// recalled returns the verdict that was found before where levels were as in the last
// pairs, of which the given one is the latest, or trying.
func (l *levels) recalled(lit, dark float64) verdict {
	v := trying
	if known := l.judged[harmful]; known[0] != 0 && lit > known[0]-levelRise/4 && dark > known[1]-levelRise/4 {
		v = harmful
	}
	if known := l.judged[helpful]; known[0] != 0 && lit < known[0]+levelRise/4 && dark < known[1]+levelRise/4 {
		v = helpful
	}
	if v != l.like {
		l.like, l.filled = v, 0
	}
	if l.filled++; l.filled < recallPairs {
		return trying
	}
	return v
}

// mean returns the mean levels of the pairs.
func (l *levels) mean() [2]float64 {
	return [2]float64{l.pairs[0].sum / l.pairs[0].n, l.pairs[1].sum / l.pairs[1].n}
}

// stay remembers at which levels no difference was found.
func (l *levels) stay() { l.judged[same] = l.mean() }

// learn remembers at which levels the verdict was found.
func (l *levels) learn(v verdict) {
	found := l.mean()
	other := helpful + harmful - v
	way := 1.0 // hedging helps below some level
	if v == harmful {
		way = -1
	}
	if known := l.judged[v]; known[0] == 0 || way*(found[0]-known[0]) > 0 {
		l.judged[v] = found
	}
	// The other verdict's levels must be apart from these in both arms, or they tell nothing.
	known, kept := l.judged[other], l.judged[v]
	if known[0] != 0 && min(way*(known[0]-kept[0]), way*(known[1]-kept[1])) < levelRise {
		l.judged[other] = [2]float64{}
		l.judged[v] = found
	}
}

// slot takes the level of a slot that is as the verdict says, and returns the verdict that follows from the last ones.
func (l *levels) slot(v verdict, level float64) verdict {
	copy(l.slots[1:], l.slots[:])
	l.slots[0] = float32(level)
	l.filled = min(l.filled+1, levelsKept)

	// Where hedging helps, higher levels count, and where it harms, lower ones.
	other, way, arm := harmful, 1.0, 0
	switch v {
	case harmful:
		other, way, arm = helpful, -1, 1
	case same:
		other = trying // of which there are no levels
	}
	if there := l.judged[other][arm]; there != 0 && l.least(recallSlots, way) >= way*(there+l.judged[v][arm])/2 {
		return other
	}
	if l.least(levelsKept, way) > way*l.judged[v][arm]+levelRise {
		return trying
	}
	return v
}

// least returns way times that of the last n slots for which this is least; -Inf if there are fewer.
func (l *levels) least(n int, way float64) float64 {
	if l.filled < n {
		return math.Inf(-1)
	}
	last := l.slots[:n]
	if way < 0 {
		return -float64(slices.Max(last))
	}
	return float64(slices.Min(last))
}
