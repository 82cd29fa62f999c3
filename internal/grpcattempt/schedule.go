package grpcattempt

import (
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Schedule is the hedge schedule of one gRPC call. If the method has a hedging policy (gRFC A6), an attempt that fails with
// a non-fatal status moves the next hedge, and the hedges after it keep their distances. It implements [race.Schedule].
type Schedule struct {
	fixed race.FixedSchedule
	moved *moved // nil: no attempt has failed with a non-fatal status
}

// moved is how failures have changed a [Schedule].
type moved struct {
	hedges   int           // so many delays have moved, see [NonFatal]
	shift    time.Duration // by which they have moved
	maxAfter time.Duration // for which a hedge may be put off, as the primary has failed with a non-fatal status; 0: it has not
}

// A NonFatal is the error of an attempt that has failed with a non-fatal status (gRFC A6): the next hedge may start now.
type NonFatal struct {
	Hedges  int           // so many of the delays are those of hedges, and can move; 0: no hedge starts because of the failure
	Elapsed time.Duration // since the race began
	After   time.Duration // pushback of the server: when the next hedge starts, from now on; 0: at once
}

func (*NonFatal) Error() string { return "hedge: the attempt failed with a non-fatal status" }

// SetDelays makes s the schedule of a call that is to be hedged after the delays. Usual is as in [race.FixedSchedule].
func (s *Schedule) SetDelays(delays []time.Duration, usual time.Duration) {
	s.fixed.Delays, s.fixed.UsualLatency, s.moved = delays, usual, nil
}

// Next returns the time between two delays, one or both of which may have moved.
func (s *Schedule) Next(index int) (wait time.Duration, ok bool) {
	if wait, ok = s.fixed.Next(index); ok && s.moved != nil && index == s.moved.hedges {
		wait -= s.moved.shift // the delay before has moved, and this one has not
	}
	return wait, ok
}

// Failed moves the next hedge if err is a [NonFatal]. If the primary has failed, its status does not wait for a hedge that
// is put off for longer than a hedge may take, nor for one that does not start: no hedge starts any more.
func (s *Schedule) Failed(n, next int, err error) race.Reschedule {
	failure, ok := err.(*NonFatal)
	if !ok {
		return race.Reschedule{Stop: n == 0}
	}
	if s.moved == nil {
		s.moved = new(moved)
	}
	m := s.moved
	if n == 0 {
		m.maxAfter = max(failure.Elapsed, race.MaxFailureHold)
	}
	switch {
	case m.maxAfter > 0 && (failure.Hedges == 0 || failure.After > m.maxAfter):
		return race.Reschedule{Stop: true}
	case next >= min(failure.Hedges, len(s.fixed.Delays)):
		return race.Reschedule{}
	}
	m.hedges, m.shift = failure.Hedges, failure.Elapsed+failure.After-s.fixed.Delays[next]
	return race.Reschedule{Move: true, After: failure.After, Elapsed: failure.Elapsed}
}

// HedgeTimeout is as in [race.FixedSchedule].
func (s *Schedule) HedgeTimeout(took time.Duration) time.Duration { return s.fixed.HedgeTimeout(took) }
