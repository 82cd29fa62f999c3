package grpcattempt

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Schedule is the hedge schedule of one gRPC call. It implements [race.Schedule]. If the method has a hedging policy
// (gRFC A6), a failure with a non-fatal status moves the next hedge, and shifts later hedges by the same time.
type Schedule struct {
	fixed   race.FixedSchedule
	shifted *delayShift // nil: no attempt has failed with a non-fatal status
}

// A delayShift describes how non-fatal failures have changed the delays of a [Schedule].
type delayShift struct {
	hedges   int           // number of delays that are shifted, from the first
	shift    time.Duration // added to these delays
	maxDelay time.Duration // limit for pushback of a hedge, because the primary has failed; 0: the primary has not failed
}

// A NonFatalError is the error of an attempt that failed with a non-fatal status (gRFC A6). The next hedge may then
// start earlier than its delay.
type NonFatalError struct {
	Hedges  int           // number of delays that can be shifted; 0: no hedge may start because of the failure
	Elapsed time.Duration // time since the start of the race
	After   time.Duration // time until the next hedge, by pushback of the server; 0: it starts at once
}

func (*NonFatalError) Error() string { return "hedge: the attempt failed with a non-fatal status" }

// SetDelays initializes s for a call that is hedged after the delays. The argument usual is the usual latency, see
// [race.FixedSchedule].
func (s *Schedule) SetDelays(delays []time.Duration, usual time.Duration) {
	s.fixed.Delays, s.fixed.UsualLatency, s.shifted = delays, usual, nil
}

// Next implements [race.Schedule]. It returns the time between the delays before and at index, after shifts.
func (s *Schedule) Next(index int) (wait time.Duration, ok bool) {
	if wait, ok = s.fixed.Next(index); ok && s.shifted != nil && index == s.shifted.hedges {
		wait -= s.shifted.shift // the delay before has moved, and this one has not
	}
	return wait, ok
}

// Failed implements [race.Schedule]. If err is a [NonFatalError], it moves the next hedge.
//
// After a failure of the primary, the call stops if no further hedge may start, or if pushback delays the next hedge
// for longer than a failed call waits.
func (s *Schedule) Failed(n, next int, err error) race.Reschedule {
	failure, ok := err.(*NonFatalError)
	if !ok {
		return race.Reschedule{Stop: n == 0}
	}
	if s.shifted == nil {
		s.shifted = new(delayShift)
	}
	m := s.shifted
	if n == 0 {
		m.maxDelay = max(failure.Elapsed, race.MaxFailureHold)
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

// HedgeTimeout implements [race.Schedule], see [race.FixedSchedule].
func (s *Schedule) HedgeTimeout(took time.Duration) time.Duration { return s.fixed.HedgeTimeout(took) }
