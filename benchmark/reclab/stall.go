package reclab

import (
	"slices"
	"time"
)

const (
	stallPeriod = 10 * time.Millisecond
	stallLimit  = 100 * time.Millisecond // delay of a timer from which on the machine counts as stalled
	aftermath   = 2 * time.Second        // time before the end of a stall whose questions it may delay
)

// A stallMonitor detects the times at which this machine stalls: a timer fires more than a tenth of a second late.
type stallMonitor struct {
	stopping, stopped chan struct{}
	stalls            []stall // valid after stop
}

type stall struct{ from, to time.Time }

// newStallMonitor returns a monitor that has started. It ends with stop.
func newStallMonitor() *stallMonitor {
	m := &stallMonitor{stopping: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		for {
			begin := time.Now()
			select {
			case <-m.stopping:
				return
			case <-time.After(stallPeriod):
			}
			if now := time.Now(); now.Sub(begin) > stallPeriod+stallLimit {
				m.stalls = append(m.stalls, stall{begin, now})
			}
		}
	}()
	return m
}

func (m *stallMonitor) stop() {
	close(m.stopping)
	<-m.stopped
}

// removeStalled removes the questions that were asked during a stall of the machine or shortly before it, with any
// verdict. They are the same for all contenders.
func (r *Row) removeStalled(stalls []stall) {
	n := len(r.Questions)
	r.Questions = slices.DeleteFunc(r.Questions, func(q Question) bool {
		return slices.ContainsFunc(stalls, func(s stall) bool {
			return q.Begin.After(s.to.Add(-max(aftermath, s.to.Sub(s.from)))) && q.Begin.Before(s.to)
		})
	})
	r.Stalled = n - len(r.Questions)
	r.countVerdicts()
}
