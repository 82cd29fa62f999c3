package race

import "time"

// A Schedule decides when the hedges of one race start. The race holds its lock during the calls, so the methods must not
// block, panic or use the race.
type Schedule interface {
	// Next returns the time from now until the hedge with the given index is due. ok is false if there is no such hedge. When
	// the time has passed, the race calls [Op.Admit].
	//
	// Next is called for index 0 when the race starts. It is called for each further index after Admit was called for the index
	// before.
	Next(index int) (wait time.Duration, ok bool)

	// Failed is called when attempt n has failed with err while no attempt has won. The result can change the time of the next
	// hedge, which has the index next in the schedule.
	Failed(n, next int, err error) Reschedule

	// HedgeTimeout returns how long after its start the youngest hedge may still run when the primary has failed. The argument
	// took is the time from the start of the primary to its failure.
	HedgeTimeout(took time.Duration) time.Duration
}

// A Reschedule changes the hedges that start after an attempt has failed. The zero value changes nothing.
type Reschedule struct {
	Stop bool // no more hedges of the schedule start
	// Move makes the next hedge due after the time After, even if the primary has failed. It has no effect if Next returned
	// false.
	Move    bool
	After   time.Duration // time from now until the next hedge is due, if Move is true
	Elapsed time.Duration // time since the start of the race, if Move is true or Failover is not nil
	// Failover, if it is not nil, starts one more hedge at once, even if the primary has failed. The hedge is not in the
	// schedule: the race calls [Op.Admit] with the index [AfterFailure]. If the hedge is admitted, the race calls Failover. It
	// returns how long the hedge may run after the primary has failed, in place of a shorter HedgeTimeout.
	Failover func() time.Duration
}

// AfterFailure is the index in calls of [Op.Admit] for a hedge that starts because an attempt has failed, see
// [Reschedule].Failover. It is less than -1, which operations use for a hedge that starts together with the primary.
const AfterFailure = -2

// A FixedSchedule starts hedges after fixed delays. After the primary has failed, it starts no more hedges.
type FixedSchedule struct {
	Delays       []time.Duration // times from the start of the race to each hedge, in ascending order
	UsualLatency time.Duration   // high percentile of the latencies of successes, such as the 99th; 0: unknown
}

// Next returns the time from the previous hedge to the hedge with the given index. For index 0, it returns the delay of the
// first hedge. ok is false if there is no hedge with this index.
func (s *FixedSchedule) Next(index int) (wait time.Duration, ok bool) {
	if index >= len(s.Delays) {
		return 0, false
	}
	if wait = s.Delays[index]; index > 0 {
		wait -= s.Delays[index-1]
	}
	return wait, true
}

// Failed stops hedging if the primary, attempt 0, has failed. It changes nothing if a hedge has failed.
func (s *FixedSchedule) Failed(n, _ int, _ error) Reschedule { return Reschedule{Stop: n == 0} }

// HedgeTimeout returns how long the youngest hedge may run after the primary has failed, see [BoundHedgeTimeout]. The
// argument took is the time until the primary failed.
func (s *FixedSchedule) HedgeTimeout(took time.Duration) time.Duration {
	return BoundHedgeTimeout(s.UsualLatency, took)
}

const (
	minFailureDelay = 10 * time.Millisecond // minimum result of BoundHedgeTimeout
	// MaxFailureDelay is the maximum result of [BoundHedgeTimeout], unless the primary took longer.
	MaxFailureDelay = time.Second
)

// BoundHedgeTimeout returns how long after its start the youngest hedge may still run when the primary has failed. The
// caller of the race waits for the hedge until then.
//
// The argument usual is the usual latency of a success, and took is the time until the primary failed. The result is usual,
// or took if usual is 0 or negative. It is at least 10 ms, and at most the larger of took and [MaxFailureDelay].
func BoundHedgeTimeout(usual, took time.Duration) time.Duration {
	if usual <= 0 {
		usual = took
	}
	return max(min(usual, max(took, MaxFailureDelay)), minFailureDelay)
}

// A failureDelay holds the times that determine how long Run waits for hedges after the primary has failed. The mu of the
// race guards it.
type failureDelay struct {
	began    time.Time     // approximate start of the primary, set when the first hedge starts
	youngest time.Time     // start of the hedge that was started last
	failover time.Duration // result of Reschedule.Failover for that hedge; 0: the hedge is in the schedule
	failed   time.Time     // time at which the primary failed while hedges ran or were due; zero: it has not
	ended    bool          // the wait is over
}

// waitDeadline returns the time at which Run stops waiting for hedges after the primary has failed. At least one hedge must
// have started. The schedule s determines how long the youngest hedge may run, unless a failure has started that hedge and
// gives it more time. Then the limits of [BoundHedgeTimeout] apply.
func (w *failureDelay) waitDeadline(s Schedule) time.Time {
	took := w.failed.Sub(w.began)
	timeout := s.HedgeTimeout(took)
	if w.failover > 0 {
		timeout = max(timeout, BoundHedgeTimeout(w.failover, took))
	}
	return w.youngest.Add(timeout)
}
