package grpcattempt

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Schedule is the hedge schedule of one gRPC call. It implements [race.Schedule].
//
// If the method has a hedging policy (gRFC A6), an attempt that fails with a non-fatal status changes the time of the
// next hedge. The delays of later hedges change by the same time.
type Schedule struct {
	fixed   race.FixedSchedule
	shifted *delayShift // nil if no attempt has failed with a non-fatal status
}

// A delayShift describes how non-fatal failures have changed the delays of a [Schedule].
type delayShift struct {
	hedges   int           // number of delays to which shift is added, from the first
	shift    time.Duration // time by which these delays are longer; negative: shorter
	maxDelay time.Duration // longest wait for a hedge after pushback, set when the primary has failed; 0: the primary has not failed
}

// A NonFatalError is the error of an attempt that failed with a non-fatal status (gRFC A6). The next hedge then starts
// at once, or at the time that the server demands.
type NonFatalError struct {
	Hedges  int           // number of hedges that the hedging policy allows; 0: the failure must start no hedge
	Elapsed time.Duration // time from the start of the race to the failure
	After   time.Duration // time from the failure to the next hedge, from the server's pushback; 0: the hedge starts at once
}

// Error implements the error interface. Callers never get this error.
func (*NonFatalError) Error() string { return "hedge: the attempt failed with a non-fatal status" }

// A FailoverError is the error of an attempt that failed in a way in which an attempt over another connection may not fail. The
// race then starts a hedge over another connection at once, see [race.Reschedule].
type FailoverError struct {
	Elapsed time.Duration        // time from the start of the race to the failure
	Timeout func() time.Duration // returns how long the hedge may run after the primary has failed
}

// Error implements the error interface. Callers never get this error.
func (*FailoverError) Error() string { return "hedge: another connection may get a better status" }

// SetDelays initializes s for a call whose hedges start after the given delays. The usual latency of a success limits
// how long hedges may run after the primary has failed, see [race.FixedSchedule].
func (s *Schedule) SetDelays(delays []time.Duration, usualLatency time.Duration) {
	s.fixed.Delays, s.fixed.UsualLatency, s.shifted = delays, usualLatency, nil
}

// Next implements [race.Schedule]. It returns the time between the hedge before index and the hedge at index. The
// result ok is false if there is no hedge at index.
func (s *Schedule) Next(index int) (wait time.Duration, ok bool) {
	if wait, ok = s.fixed.Next(index); ok && s.shifted != nil && index == s.shifted.hedges {
		wait -= s.shifted.shift // the previous delay was shifted, and the delay at index was not
	}
	return wait, ok
}

// Failed implements [race.Schedule]. The race calls it when attempt n has failed with err; next is the index of the
// next hedge. The result says whether the race stops, or when the next hedge starts.
//
// A [FailoverError] starts one more hedge. A [NonFatalError] moves the next hedge to the time that it states. After a failure of the primary, the race stops if
// no further hedge may start. It also stops if the server's pushback delays the next hedge too long.
func (s *Schedule) Failed(n, next int, err error) race.Reschedule {
	if failover, ok := err.(*FailoverError); ok {
		return race.Reschedule{Stop: n == 0, Failover: failover.Timeout, Elapsed: failover.Elapsed}
	}
	failure, ok := err.(*NonFatalError)
	if !ok {
		return race.Reschedule{Stop: n == 0}
	}
	if s.shifted == nil {
		s.shifted = new(delayShift)
	}
	m := s.shifted
	if n == 0 {
		m.maxDelay = max(failure.Elapsed, race.MaxFailureDelay)
	}
	switch {
	case m.maxDelay > 0 && (failure.Hedges == 0 || failure.After > m.maxDelay):
		return race.Reschedule{Stop: true}
	case next >= min(failure.Hedges, len(s.fixed.Delays)):
		return race.Reschedule{}
	}
	m.hedges, m.shift = failure.Hedges, failure.Elapsed+failure.After-s.fixed.Delays[next]
	return race.Reschedule{Move: true, After: failure.After, Elapsed: failure.Elapsed}
}

// HedgeTimeout implements [race.Schedule]: it returns how long a hedge may run when the primary has failed after the
// time took. See [race.FixedSchedule].
func (s *Schedule) HedgeTimeout(took time.Duration) time.Duration { return s.fixed.HedgeTimeout(took) }
