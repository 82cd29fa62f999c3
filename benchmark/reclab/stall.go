package reclab

import (
	"slices"
	"time"
)

const (
	stallPeriod = 10 * time.Millisecond
	stalled     = 100 * time.Millisecond // how late a timer is when the machine stands still
	aftermath   = 2 * time.Second        // how long before the end of a stall a question may have been asked that it delays
)

// stalls are the times when this machine stood still.
type stalls struct {
	end, ended chan struct{}
	seen       []stall // valid after stop
}

type stall struct{ from, to time.Time }

func watchStalls() *stalls {
	s := &stalls{end: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for {
			began := time.Now()
			select {
			case <-s.end:
				return
			case <-time.After(stallPeriod):
			}
			if now := time.Now(); now.Sub(began) > stallPeriod+stalled {
				s.seen = append(s.seen, stall{began, now})
			}
		}
	}()
	return s
}

func (s *stalls) stop() {
	close(s.end)
	<-s.ended
}

// leaveOut leaves out the questions that were asked when a stall was near, whatever became of
// them: those are the same for all contenders.
func (r *Row) leaveOut(all []stall) {
	n := len(r.Calls)
	r.Calls = slices.DeleteFunc(r.Calls, func(c Call) bool {
		return slices.ContainsFunc(all, func(s stall) bool {
			return c.Begun.After(s.to.Add(-max(aftermath, s.to.Sub(s.from)))) && c.Begun.Before(s.to)
		})
	})
	r.Stalled = n - len(r.Calls)
	r.count()
}
