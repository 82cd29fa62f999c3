package policy

import (
	"time"

	"github.com/gohedge/hedge/sketch"
)

// A schedule is made again after so many completed calls. There are fewer at the beginning, and more where many calls count: then
// a thirty-second of the calls in the window is new. In a busy window that is every third of a second.
const (
	callsPerSchedule   = 256
	newShareOfSchedule = 32
)

// latencies are what a key has learned from its calls. [Key].mu guards them.
type latencies struct {
	window   sketch.Window // latencies of calls; in shadow mode, as they would have been with hedges
	newCalls int           // completed calls since the schedule was made
	dueCalls int           // new calls after which the schedule is made again
	residual *residualTime // nil: nothing is known
	pauses   *pauseLengths // of bodies; nil: nothing is known
}

func newLatencies() *latencies { return &latencies{dueCalls: MinSamples} }

func (l *latencies) resetWindow() { *l = *newLatencies() }

// recordPrimary records how long the primary of a call took that has reached its first delay. If a hedge has won, it
// returns an estimate of how much longer the primary would have taken.
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

// callsUntilDue returns after how many completed calls a schedule made of d is out of date.
func callsUntilDue(d *sketch.Distribution) int {
	n := d.Len()
	if n < MinSamples {
		return MinSamples - n
	}
	return max(min(callsPerSchedule, n/3), int(d.Weight()/newShareOfSchedule))
}
