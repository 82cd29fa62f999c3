package race

import "time"

// A Schedule says when the hedges of one race may start. The race calls it with its lock held: it must not block, panic or
// call the race.
type Schedule interface {
	// Next returns the time from now until the race calls [Op.Admit] for the hedge of the given index; false: no hedge starts any
	// more. Next is called for index 0 when the race begins, and for each further index when Admit was called for the one before.
	Next(index int) (wait time.Duration, ok bool)

	// Failed is called when attempt n has failed with err and no attempt has won. It returns how that changes the time of
	// the next hedge, whose index is given.
	Failed(n, next int, err error) Reschedule

	// HedgeTimeout returns how long the youngest hedge may take once the primary has failed after the time took.
	HedgeTimeout(took time.Duration) time.Duration
}

// A Reschedule is a change of the time of the next hedge. The zero value is no change.
type Reschedule struct {
	Stop    bool          // no hedge starts any more
	Move    bool          // the next hedge is due After from now, also if the primary has failed. It has no effect if Next has returned false
	After   time.Duration // if Move is set
	Elapsed time.Duration // since the race began, if Move is set
}

// A FixedSchedule is a list of delays. No hedge starts once the primary has failed.
type FixedSchedule struct {
	Delays       []time.Duration // since the race began, rising
	UsualLatency time.Duration   // the longest time that a success usually takes, such as the 99th percentile; 0: it is not known
}

// Next returns the distance between two delays.
func (s *FixedSchedule) Next(index int) (wait time.Duration, ok bool) {
	if index >= len(s.Delays) {
		return 0, false
	}
	if wait = s.Delays[index]; index > 0 {
		wait -= s.Delays[index-1]
	}
	return wait, true
}

// Failed stops hedging if the primary has failed.
func (s *FixedSchedule) Failed(n, _ int, _ error) Reschedule { return Reschedule{Stop: n == 0} }

// HedgeTimeout is [BoundHedgeTimeout] of the usual time.
func (s *FixedSchedule) HedgeTimeout(took time.Duration) time.Duration {
	return BoundHedgeTimeout(s.UsualLatency, took)
}

const (
	minFailureHold = 10 * time.Millisecond
	// MaxFailureHold is the longest time that a hedge may take once the primary has failed, unless the primary took longer.
	MaxFailureHold = time.Second
)

// BoundHedgeTimeout returns how long the youngest hedge may take once the primary has failed: the usual time of a success or, if that is
// not known (0), the time that the primary took. The failure of the primary is then returned.
func BoundHedgeTimeout(usual, took time.Duration) time.Duration {
	if usual <= 0 {
		usual = took
	}
	return max(min(usual, max(took, MaxFailureHold)), minFailureHold)
}

// failureHold is the time for which the failure of a primary is held while hedges run.
type failureHold struct {
	began    time.Time // about when the primary began; set once a hedge has started
	youngest time.Time // when the latest hedge started
	failed   time.Time // when the primary failed while hedges were running or due; zero: it has not
	ended    bool      // the failure is not held any longer
}

// holdUntil returns the time until which the failure of the primary is held. A hedge has started.
func (w *failureHold) holdUntil(s Schedule) time.Time {
	return w.youngest.Add(s.HedgeTimeout(w.failed.Sub(w.began)))
}
