package policy

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// failureWindowCalls is the number of last calls whose share of failures shadow mode expects of hedges.
const failureWindowCalls = 256

// A shadowStats predicts the results of hedges that shadow mode does not send. [Key].mu guards it. A nil one is that of a key that is not
// in shadow mode.
type shadowStats struct {
	observedWindow sketch.Window // latencies of the calls, as their callers observed them
	failureShare   float64       // share of the last calls that failed
}

// deny returns the reason why a hedge that the budget has paid for is not sent; None if there is no shadow mode.
func (s *shadowStats) deny() observe.Reason {
	if s != nil {
		return observe.DeniedShadow
	}
	return None
}

// record records the result of a call, whose latency has the given index in the window.
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

// wouldHaveWon reports whether a hedge that was not sent would have given the call its result: sooner than the primary's
// answer or the caller's end, or while the primary's failure waits for it.
func (s *shadowStats) wouldHaveWon(r *Result, schedule *Schedule) bool {
	limit := r.Latency
	if r.hasFailed() && schedule != nil {
		limit += race.BoundHedgeTimeout(schedule.UsualLatency, r.Latency)
	}
	return r.PredictedHedgeEnd > 0 && r.PredictedHedgeEnd < limit
}
