package audit

import (
	"math"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	reportCalls = 300 // of an arm, and reportPairs, without which its p99 is not reported
	reportPairs = 4
	maxPairs    = 256 // after which the arms begin anew

	interval = 1.96 // standard errors on each side of an estimate, for 95 %
)

// arms are the calls of the compared slots, without hedging and with it. They are for the report alone.
type arms struct {
	open            slotLatencies // of the open slot
	dark, lit       arm
	pairs           int
	failed, squares float64 // sums of the pairs' differences of the share of calls that failed, and of their squares
}

// An arm is all compared slots in which hedging is off, or on.
type arm struct {
	latencies                                                histogram
	slots, calls, failed, hedges, level, above, aboveSquared float64 // sums over slots; above is the number of calls slower than the p99 of the arm
}

// armOf returns the arm of a slot.
func (a *arms) armOf(dark bool) *arm {
	if dark {
		return &a.dark
	}
	return &a.lit
}

// addSlot adds the open slot to its arm.
func (a *arms) addSlot(s *slot, sum *summary) {
	slot, m, above := a.open.answers, a.armOf(s.dark), 0.0
	for i, n := range a.open.failures {
		slot[i] += n
		m.latencies[i] += slot[i]
	}
	for i := int(m.latencies.quantile(0.99)); i < bins; i++ {
		above += float64(slot[i])
	}
	m.slots++
	m.calls += float64(s.begun)
	m.failed += float64(s.failures)
	m.hedges += float64(s.hedges)
	m.level += sum.level
	m.above += above
	m.aboveSquared += above * above
}

// addPair counts a compared pair.
func (a *arms) addPair(dark, lit *summary) {
	d := dark.failed - lit.failed
	a.pairs, a.failed, a.squares = a.pairs+1, a.failed+d, a.squares+d*d
}

// writeReport writes the latencies and failures of the arms to r, if there are enough calls.
func (a *arms) writeReport(r *observe.Audit) {
	r.Pairs = max(r.Pairs, a.pairs)
	if a.pairs < reportPairs || min(a.dark.calls, a.lit.calls) < reportCalls {
		return
	}
	dark, darkError := a.dark.estimateP99()
	lit, litError := a.lit.estimateP99()
	r.Pairs, r.P99, r.Saved, r.PlusMinus = a.pairs, dark, dark-lit, time.Duration(math.Hypot(darkError, litError))
	n := float64(a.pairs)
	mean := a.failed / n
	r.FailureShare, r.FailuresSaved = a.dark.failed/a.dark.calls, mean
	r.FailuresPlusMinus = interval * math.Sqrt(max(a.squares/n-mean*mean, 0)/(n-1))
	r.Extra = a.lit.hedges / a.lit.calls
}

// estimateP99 returns the 99th percentile of the latencies of an arm, and half of its 95 % interval, which lies between quantiles.
// Slow calls come in clusters, so the variance of their number is taken from the slots.
func (m *arm) estimateP99() (p99 time.Duration, plusMinus float64) {
	mean, cluster := m.above/m.slots, 1.0
	if mean > 0 && m.slots > 1 {
		cluster = max((m.aboveSquared/m.slots-mean*mean)*m.slots/(m.slots-1)/mean, 1)
	}
	width := interval * math.Sqrt(0.99*0.01*cluster/m.calls)
	high, low := timeAt(m.latencies.quantile(0.99+width)), timeAt(m.latencies.quantile(0.99-width))
	return timeAt(m.latencies.quantile(0.99)), float64(high-low) / 2
}
