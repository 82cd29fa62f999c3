package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// failureWindowCalls is the number of calls over which the moving average of failures extends. Shadow mode predicts that hedges
// fail as often as calls.
const failureWindowCalls = 256

// A shadowStats holds the data by which shadow mode predicts the results of hedges that it does not send. [Key].mu guards it.
type shadowStats struct {
	observedWindow sketch.Window // latencies as callers observed them, without hedges
	failureShare   float64       // moving average of the share of calls that failed
}

// deny returns the reason why shadow mode denies a hedge that was admitted otherwise: DeniedShadow. It returns None if s is
// nil, which means that shadow mode is off.
func (s *shadowStats) deny() observe.Reason {
	if s != nil {
		return observe.DeniedShadow
	}
	return None
}

// record adds the result r of a call, which ended at the time now, to the statistics. The argument index is the result of
// sketch.Index for the latency of the call.
func (s *shadowStats) record(now time.Time, r *Result, index int) {
	failed := 0.0
	if r.hasFailed() {
		failed = 1
	}
	s.failureShare += (failed - s.failureShare) / failureWindowCalls
	if r.shouldLearnLatency() {
		s.observedWindow.AddIndex(now, index)
	}
}

// wouldHaveWon reports whether a hedge that was not sent would have won, because its predicted end is before the end of the
// call. The arguments are the result and the schedule of the call.
//
// A failed call would have ended later with a hedge, because the race delays a failure while hedges run. Therefore the hedge
// also wins if its predicted end is within that delay.
func (s *shadowStats) wouldHaveWon(r *Result, schedule *Schedule) bool {
	limit := r.Latency
	if r.hasFailed() && schedule != nil {
		limit += race.HedgeTimeoutAfterFailure(schedule.UsualLatency, r.Latency)
	}
	return r.PredictedHedgeEnd > 0 && r.PredictedHedgeEnd < limit
}
