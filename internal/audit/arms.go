package audit

import (
	"math"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	minReportCalls = 300 // of an arm, and reportPairs, without which its p99 is not reported
	minReportPairs = 4
	maxArmPairs    = 256 // after which the arms begin anew

	zScore95 = 1.96 // standard errors on each side of an estimate, for 95 %
)

// arms are the calls of the compared slots, without hedging and with it. They are for the report alone.
type arms struct {
	openLatencies                                slotLatencies // of the open slot
	control, treatment                           arm
	pairs                                        int
	failureDifferences, failureDifferenceSquares float64 // sums of the pairs' differences of the share of calls that failed, and of their squares
}

// An arm is all compared slots in which hedging is off, or on.
type arm struct {
	latencies                                                           histogram
	slots, calls, failed, hedges, latencySum, aboveP99, aboveP99Squares float64 // sums over slots; above is the number of calls slower than the p99 of the arm
}

// armOf returns the arm of a slot.
func (a *arms) armOf(dark bool) *arm {
	if dark {
		return &a.control
	}
	return &a.treatment
}

// addSlot adds the open slot to its arm.
func (a *arms) addSlot(s *slot, sum *summary) {
	slot, m, above := a.openLatencies.answers, a.armOf(s.hedgingOff), 0.0
	for i, n := range a.openLatencies.failures {
		slot[i] += n
		m.latencies[i] += slot[i]
	}
	for i := int(m.latencies.quantile(0.99)); i < binCount; i++ {
		above += float64(slot[i])
	}
	m.slots++
	m.calls += float64(s.calls)
	m.failed += float64(s.failures)
	m.hedges += float64(s.hedges)
	m.latencySum += sum.meanLatency
	m.aboveP99 += above
	m.aboveP99Squares += above * above
}

// addPair counts a compared pair.
func (a *arms) addPair(dark, lit *summary) {
	d := dark.failureShare - lit.failureShare
	a.pairs, a.failureDifferences, a.failureDifferenceSquares = a.pairs+1, a.failureDifferences+d, a.failureDifferenceSquares+d*d
}

// writeReport writes the latencies and failures of the arms to r, if there are enough calls.
func (a *arms) writeReport(r *observe.Audit) {
	r.Pairs = max(r.Pairs, a.pairs)
	if a.pairs < minReportPairs || min(a.control.calls, a.treatment.calls) < minReportCalls {
		return
	}
	dark, darkError := a.control.estimateP99()
	lit, litError := a.treatment.estimateP99()
	r.Pairs, r.P99, r.Saved, r.PlusMinus = a.pairs, dark, dark-lit, time.Duration(math.Hypot(darkError, litError))
	n := float64(a.pairs)
	mean := a.failureDifferences / n
	r.FailureShare, r.FailuresSaved = a.control.failed/a.control.calls, mean
	r.FailuresPlusMinus = zScore95 * math.Sqrt(max(a.failureDifferenceSquares/n-mean*mean, 0)/(n-1))
	r.Extra = a.treatment.hedges / a.treatment.calls
}

// estimateP99 returns the 99th percentile of the latencies of an arm, and half of its 95 % interval, which lies between quantiles.
// Slow calls come in clusters, so the variance of their number is taken from the slots.
func (m *arm) estimateP99() (p99 time.Duration, plusMinus float64) {
	mean, cluster := m.aboveP99/m.slots, 1.0
	if mean > 0 && m.slots > 1 {
		cluster = max((m.aboveP99Squares/m.slots-mean*mean)*m.slots/(m.slots-1)/mean, 1)
	}
	width := zScore95 * math.Sqrt(0.99*0.01*cluster/m.calls)
	high, low := durationAt(m.latencies.quantile(0.99+width)), durationAt(m.latencies.quantile(0.99-width))
	return durationAt(m.latencies.quantile(0.99)), float64(high-low) / 2
}
