package audit

import (
	"math"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	minReportCalls = 300 // minimum number of calls in each arm from which the p99 is reported
	minReportPairs = 4   // minimum number of compared pairs from which the p99 is reported
	maxArmPairs    = 256 // number of compared pairs after which all statistics of the arms are deleted

	zScore95 = 1.96 // a 95 % confidence interval extends this many standard errors to each side
)

// An experimentArms holds the statistics of both arms of the experiment: control, in which hedging is off, and treatment. The report
// for users is made from them. The verdict does not depend on them. The mutex of the Audit guards them.
type experimentArms struct {
	openLatencies      slotLatencies // latencies of the slot that is being measured
	control, treatment arm           // statistics of each arm
	pairs              int           // number of compared pairs

	// Each pair has one difference: the share of failed calls in the control slot minus that in the treatment slot.
	failureDifferences       float64 // sum of the differences
	failureDifferenceSquares float64 // sum of the squared differences
}

// An arm holds sums over all compared slots of the control arm, in which hedging is off, or of the treatment arm.
type arm struct {
	latencies                    histogram // latencies of all calls
	slots, calls, failed, hedges float64   // numbers of slots, calls, failed calls and hedges
	latencySum                   float64   // sum of the mean latencies of the slots, in octaves
	// aboveP99 counts the calls that were slower than the p99 of the arm when their slot was added. aboveP99Squares sums the
	// squares of this count per slot.
	aboveP99, aboveP99Squares float64
}

// armOf returns the arm of a slot: the control arm if hedging is off in the slot, and otherwise the treatment arm.
func (a *experimentArms) armOf(hedgingOff bool) *arm {
	if hedgingOff {
		return &a.control
	}
	return &a.treatment
}

// addSlot adds the statistics of the slot s, which has ended, to its arm. The argument sum is the summary of s.
func (a *experimentArms) addSlot(s *slot, sum *summary) {
	slot, m, above := a.openLatencies.successes, a.armOf(s.hedgingOff), 0.0
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

// addPair adds a compared pair of slots to the statistics of failures. It adds the share of failed calls in the control slot
// minus that in the treatment slot.
func (a *experimentArms) addPair(control, treatment *summary) {
	d := control.failureShare - treatment.failureShare
	a.pairs, a.failureDifferences, a.failureDifferenceSquares = a.pairs+1, a.failureDifferences+d, a.failureDifferenceSquares+d*d
}

// fillReport stores the statistics of both arms in the report r: the 99th percentile, the failures, and how much hedging
// has changed them. Before there are enough calls and pairs, it only updates the number of pairs.
func (a *experimentArms) fillReport(r *observe.Audit) {
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

// estimateP99 returns the 99th percentile of the arm's latencies. plusMinus is half the width of its 95 % confidence interval,
// in nanoseconds. Slow calls come in clusters, so the variance is estimated from the number of slow calls in each slot.
func (m *arm) estimateP99() (p99 time.Duration, plusMinus float64) {
	mean, cluster := m.aboveP99/m.slots, 1.0
	if mean > 0 && m.slots > 1 {
		cluster = max((m.aboveP99Squares/m.slots-mean*mean)*m.slots/(m.slots-1)/mean, 1)
	}
	width := zScore95 * math.Sqrt(0.99*0.01*cluster/m.calls)
	high, low := durationAt(m.latencies.quantile(0.99+width)), durationAt(m.latencies.quantile(0.99-width))
	return durationAt(m.latencies.quantile(0.99)), float64(high-low) / 2
}
