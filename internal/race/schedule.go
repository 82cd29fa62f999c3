package race

import "time"

// A Schedule decides when the hedges of one race may start. The race calls it with its lock held: it must not block, panic or call the
// race.
type Schedule interface {
	// Next returns the time from now to the hedge with the given index; false: there is no such hedge. When the time has passed, the race
	// calls [Op.Admit]. Next is called for index 0 at the start of the race, and for each further index after the Admit of the hedge
	// before.
	Next(index int) (wait time.Duration, ok bool)

	// Failed is called when attempt n has failed with err and no attempt has won. It returns a change of the time of the hedge with the
	// index next.
	Failed(n, next int, err error) Reschedule

	// HedgeTimeout returns the maximum age of the youngest hedge after the primary has failed. The argument took is the time that the
	// primary took.
	HedgeTimeout(took time.Duration) time.Duration
}

// A Reschedule changes the time of the next hedge. The zero value changes nothing.
type Reschedule struct {
	Stop    bool          // no further hedge starts
	Move    bool          // the next hedge is due when After has passed, even if the primary has failed; no effect if Next returned false
	After   time.Duration // time from now to the next hedge, if Move is set
	Elapsed time.Duration // time since the start of the race, if Move is set
}

// A FixedSchedule is a list of delays. After the primary has failed, no further hedge starts.
type FixedSchedule struct {
	Delays       []time.Duration // times from the start of the race to each hedge, in ascending order
	UsualLatency time.Duration   // high percentile of the latencies of successes, such as the 99th; 0: not known
}

// Next returns the time between two delays, or the first delay for index 0.
func (s *FixedSchedule) Next(index int) (wait time.Duration, ok bool) {
	if index >= len(s.Delays) {
		return 0, false
	}
	if wait = s.Delays[index]; index > 0 {
		wait -= s.Delays[index-1]
	}
	return wait, true
}

// Failed stops hedging if the primary, attempt 0, has failed.
func (s *FixedSchedule) Failed(n, _ int, _ error) Reschedule { return Reschedule{Stop: n == 0} }

// HedgeTimeout returns [BoundHedgeTimeout] for UsualLatency.
func (s *FixedSchedule) HedgeTimeout(took time.Duration) time.Duration {
	return BoundHedgeTimeout(s.UsualLatency, took)
}

const (
	minFailureHold = 10 * time.Millisecond
	// MaxFailureHold is the maximum of [BoundHedgeTimeout] for a primary that took less time.
	MaxFailureHold = time.Second
)

// BoundHedgeTimeout returns the time that the youngest hedge may take after the primary has failed. It is the usual latency of a success,
// or took, the time that the primary took, if usual is 0. It is at least 10 ms, and at most took or [MaxFailureHold], whichever is longer.
func BoundHedgeTimeout(usual, took time.Duration) time.Duration {
	if usual <= 0 {
		usual = took
	}
	return max(min(usual, max(took, MaxFailureHold)), minFailureHold)
}

// A failureHold measures the time for which the failure of a primary is held while hedges run.
type failureHold struct {
	began    time.Time // approximate start of the primary; set when the first hedge starts
	youngest time.Time // start of the latest hedge
	failed   time.Time // time at which the primary failed while hedges were running or due; zero: it has not
	ended    bool      // the failure is no longer held
}

// holdUntil returns the time until which the failure of the primary is held. It must be called after a hedge has started.
func (w *failureHold) holdUntil(s Schedule) time.Time {
	return w.youngest.Add(s.HedgeTimeout(w.failed.Sub(w.began)))
}
