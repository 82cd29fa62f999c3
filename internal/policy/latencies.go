package policy

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

// A key makes a new schedule after callsPerSchedule calls, or after fewer calls if it has few latencies. A busy key makes a new
// schedule when 1/newShareOfSchedule of the calls in its window are new, which is about three times per second.
const (
	callsPerSchedule   = 256
	newShareOfSchedule = 32
)

// latencies holds the latency statistics of a key. [Key].mu guards it.
type latencies struct {
	// window holds the latencies of recent calls. In shadow mode, it holds the latencies that calls would have had with hedges.
	window   sketch.Window
	newCalls int                    // number of recorded calls since the last schedule was made
	dueCalls int                    // a new schedule is due when newCalls reaches this number
	residual *residualTimeEstimator // estimates the remaining time of primaries; nil: no primary has reached its first hedge delay
	pauses   *pauseHistogram        // longest pauses of response bodies; nil: none was recorded
}

// newLatencies returns empty statistics, for which the first schedule is due after MinSamples calls.
func newLatencies() *latencies { return &latencies{dueCalls: MinSamples} }

// resetStatistics deletes all latency statistics, so that the key learns anew.
func (l *latencies) resetStatistics() { *l = *newLatencies() }

// recordPrimary records the latency of a primary that had not responded when its call reached the first hedge delay. If a
// hedge won, the primary was cancelled, so its latency is only a lower bound. Then recordPrimary returns the estimated time
// that the hedge saved. Otherwise it returns 0.
func (l *latencies) recordPrimary(r *Result) (saved time.Duration) {
	if r.HedgeWon {
		saved = l.residual.RemainingAfter(r.Latency)
	}
	if l.residual == nil {
		l.residual = new(residualTimeEstimator)
	}
	l.residual.Add(r.Latency, !r.Abandoned && !r.HedgeWon)
	return saved
}

// callsUntilNextSchedule returns the number of further calls after which a key must make a new schedule. The argument d holds the
// latencies from which its present schedule was made.
func callsUntilNextSchedule(d *sketch.Distribution) int {
	n := d.Len()
	if n < MinSamples {
		return MinSamples - n
	}
	return max(min(callsPerSchedule, n/3), int(d.Weight()/newShareOfSchedule))
}
