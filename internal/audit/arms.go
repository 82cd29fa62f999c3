package audit

import (
	"math"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	minReportCalls = 300 // minimum of calls in each arm for a report of the p99
	minReportPairs = 4   // minimum of pairs for a report of the p99
	maxArmPairs    = 256 // number of pairs after which the arms are deleted and start again

	zScore95 = 1.96 // standard errors on each side of an estimate, for an interval of 95 %
)

// arms are the statistics of the two arms of the experiment, control and treatment, for the report. The verdict does not depend on them.
type arms struct {
	openLatencies      slotLatencies // of the open slot
	control, treatment arm
	pairs              int // compared pairs

	// For each pair, the difference between control and treatment of the share of failed calls.
	failureDifferences       float64 // sum
	failureDifferenceSquares float64 // sum of the squares
}

// An arm holds sums over the compared slots of one arm: control, in which hedging is off, or treatment.
type arm struct {
	latencies                    histogram
	slots, calls, failed, hedges float64
	latencySum                   float64 // sum of the mean latencies of the slots
	aboveP99, aboveP99Squares    float64 // number of calls that were slower than the p99 of the arm, and its squares
}

// armOf returns the control arm if hedgingOff is true, and otherwise the treatment arm.
func (a *arms) armOf(hedgingOff bool) *arm {
	if hedgingOff {
		return &a.control
	}
	return &a.treatment
}

// addSlot adds the open slot with its summary to its arm.
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

// addPair adds the difference in failures between the two slots of a pair.
func (a *arms) addPair(control, treatment *summary) {
	d := control.failureShare - treatment.failureShare
	a.pairs, a.failureDifferences, a.failureDifferenceSquares = a.pairs+1, a.failureDifferences+d, a.failureDifferenceSquares+d*d
}

// writeReport writes latencies and failures of both arms to r, if there are enough calls and pairs.
func (a *arms) writeReport(r *observe.Audit) {
	r.Pairs = max(r.Pairs, a.pairs)
	if a.pairs < minReportPairs || min(a.control.calls, a.treatment.calls) < minReportCalls {
		return
	}
	control, controlError := a.control.estimateP99()
	treatment, treatmentError := a.treatment.estimateP99()
	r.Pairs, r.P99, r.Saved, r.PlusMinus = a.pairs, control, control-treatment, time.Duration(math.Hypot(controlError, treatmentError))
	n := float64(a.pairs)
	mean := a.failureDifferences / n
	r.FailureShare, r.FailuresSaved = a.control.failed/a.control.calls, mean
	r.FailuresPlusMinus = zScore95 * math.Sqrt(max(a.failureDifferenceSquares/n-mean*mean, 0)/(n-1))
	r.Extra = a.treatment.hedges / a.treatment.calls
}

// estimateP99 returns the 99th percentile of the latencies of an arm, and half the width of its 95 % confidence interval. Slow calls come
// in clusters, so their variance is estimated from their number in each slot.
func (m *arm) estimateP99() (p99 time.Duration, plusMinus float64) {
	mean, cluster := m.aboveP99/m.slots, 1.0
	if mean > 0 && m.slots > 1 {
		cluster = max((m.aboveP99Squares/m.slots-mean*mean)*m.slots/(m.slots-1)/mean, 1)
	}
	width := zScore95 * math.Sqrt(0.99*0.01*cluster/m.calls)
	high, low := durationAt(m.latencies.quantile(0.99+width)), durationAt(m.latencies.quantile(0.99-width))
	return durationAt(m.latencies.quantile(0.99)), float64(high-low) / 2
}
