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
	// returns how long after its start the hedge may run when the primary has failed, or 0 for the time of HedgeTimeout. The hedge
	// ends at most [MaxFailureDelay], or as long as the primary took, after the failure of the primary.
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

// HedgeTimeout returns how long the youngest hedge may run after the primary has failed, see [HedgeTimeoutAfterFailure]. The
// argument took is the time until the primary failed.
func (s *FixedSchedule) HedgeTimeout(took time.Duration) time.Duration {
	return HedgeTimeoutAfterFailure(s.UsualLatency, took)
}

const (
	minFailureDelay = 10 * time.Millisecond // minimum result of HedgeTimeoutAfterFailure
	// MaxFailureDelay is the maximum result of [HedgeTimeoutAfterFailure], unless the primary took longer.
	MaxFailureDelay = time.Second
)

// HedgeTimeoutAfterFailure returns how long after its start the youngest hedge may still run when the primary has failed. The
// caller of the race waits for the hedge until then.
//
// The argument usual is the usual latency of a success, and took is the time until the primary failed. The result is usual,
// or took if usual is 0 or negative. It is at least 10 ms, and at most the larger of took and [MaxFailureDelay].
func HedgeTimeoutAfterFailure(usual, took time.Duration) time.Duration {
	if usual <= 0 {
		usual = took
	}
	return max(min(usual, max(took, MaxFailureDelay)), minFailureDelay)
}

// A failureDelay holds the times that determine how long Run waits for hedges after the primary has failed. The mu of the
// race guards it.
type failureDelay struct {
	began    time.Time // approximate start of the primary, set when the first hedge starts
	youngest time.Time // start of the hedge of the schedule that was started last
	failed   time.Time // time at which the primary failed while hedges ran or were due; zero: it has not
	ended    bool      // the wait is over
}

// A failover describes a hedge that is not in the schedule: the failure of another attempt has started it.
type failover struct {
	start          time.Time
	timeout        time.Duration // result of Reschedule.Failover; 0: HedgeTimeout applies
	followsPrimary bool          // it was started by the failure of the primary, or of another hedge that followsPrimary
}

// isAfterPrimary returns the field followsPrimary, or false if f is nil.
func (f *failover) isAfterPrimary() bool { return f != nil && f.followsPrimary }

// waitDeadline returns the time until which f may run if the primary has failed at the time failed, after the time took. The argument
// usual applies if f has no timeout of its own.
func (f *failover) waitDeadline(failed time.Time, took, usual time.Duration) time.Time {
	own, limit := f.start.Add(usual), failed.Add(max(took, MaxFailureDelay))
	if f.timeout > 0 {
		own = f.start.Add(HedgeTimeoutAfterFailure(f.timeout, took))
	}
	if own.After(limit) {
		return limit
	}
	return own
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
