package policy

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

// A new schedule is made after callsPerSchedule calls. For a key with few calls, it is made earlier. For a busy key, it is made when
// 1/newShareOfSchedule of the calls in its window are new: about every third of a second.
const (
	callsPerSchedule   = 256
	newShareOfSchedule = 32
)

// latencies are the latency statistics of a key. [Key].mu guards them.
type latencies struct {
	window   sketch.Window // latencies of calls; in shadow mode, as they would have been with hedges
	newCalls int           // number of completed calls since the schedule was made
	dueCalls int           // number of new calls after which the schedule is made again
	residual *residualTime // of primaries; nil: no primary has reached its first delay
	pauses   *pauseLengths // of response bodies; nil: no pause was recorded
}

func newLatencies() *latencies { return &latencies{dueCalls: MinSamples} }

func (l *latencies) resetWindow() { *l = *newLatencies() }

// recordPrimary records the latency of a primary that has reached its first delay. If a hedge has won, it returns the estimated time that
// the hedge saved.
func (l *latencies) recordPrimary(r *Result) (saved time.Duration) {
	if r.HedgeWon {
		saved = l.residual.After(r.Latency)
	}
	if l.residual == nil {
		l.residual = new(residualTime)
	}
	l.residual.Add(r.Latency, !r.Abandoned && !r.HedgeWon)
	return saved
}

// callsUntilDue returns the number of completed calls after which a schedule made from d must be made again.
func callsUntilDue(d *sketch.Distribution) int {
	n := d.Len()
	if n < MinSamples {
		return MinSamples - n
	}
	return max(min(callsPerSchedule, n/3), int(d.Weight()/newShareOfSchedule))
}
