package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// failureWindowCalls is the length, in calls, of the moving average of failures. Shadow mode predicts the same share of failures for hedges.
const failureWindowCalls = 256

// A shadowStats predicts the results of hedges that shadow mode does not send. It is nil if the key is not in shadow mode. [Key].mu guards
// it.
type shadowStats struct {
	observedWindow sketch.Window // latencies of the calls without hedges, as callers observed them
	failureShare   float64       // moving average of the failed calls
}

// deny returns DeniedShadow in shadow mode, and otherwise None.
func (s *shadowStats) deny() observe.Reason {
	if s != nil {
		return observe.DeniedShadow
	}
	return None
}

// record records the result of a call. The index is that of its latency in the window.
func (s *shadowStats) record(now time.Time, r *Result, index int) {
	failed := 0.0
	if r.hasFailed() {
		failed = 1
	}
	s.failureShare += (failed - s.failureShare) / failureWindowCalls
	if r.isTimed() {
		s.observedWindow.AddIndex(now, index)
	}
}

// wouldHaveWon reports whether a hedge that was not sent would have given the call its result. Its predicted end must be before the end of
// the call. If the primary failed, the time for which the failure would have been held is added.
func (s *shadowStats) wouldHaveWon(r *Result, schedule *Schedule) bool {
	limit := r.Latency
	if r.hasFailed() && schedule != nil {
		limit += race.BoundHedgeTimeout(schedule.UsualLatency, r.Latency)
	}
	return r.PredictedHedgeEnd > 0 && r.PredictedHedgeEnd < limit
}
