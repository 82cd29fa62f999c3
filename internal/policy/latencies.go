package policy

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

// A new schedule is made after callsPerSchedule calls. A key with few calls makes it earlier. A busy key makes it when
// 1/newShareOfSchedule of the calls in its window are new: about every third of a second.
const (
	callsPerSchedule   = 256
	newShareOfSchedule = 32
)

// latencies are the statistics that a key has learned from its calls. [Key].mu guards them.
type latencies struct {
	window   sketch.Window // latencies of calls; in shadow mode, as they would have been with hedges
	newCalls int           // completed calls since the schedule was made
	dueCalls int           // new calls after which the schedule is made again
	residual *residualTime // nil: nothing is known
	pauses   *pauseLengths // of bodies; nil: nothing is known
}

func newLatencies() *latencies { return &latencies{dueCalls: MinSamples} }

func (l *latencies) resetWindow() { *l = *newLatencies() }

// recordPrimary records the latency of the primary of a call that has reached its first delay. If a hedge has won, it returns an estimate of
// the further time that the primary would have taken.
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

// callsUntilDue returns the number of completed calls after which a schedule that was made from d is out of date.
func callsUntilDue(d *sketch.Distribution) int {
	n := d.Len()
	if n < MinSamples {
		return MinSamples - n
	}
	return max(min(callsPerSchedule, n/3), int(d.Weight()/newShareOfSchedule))
}
