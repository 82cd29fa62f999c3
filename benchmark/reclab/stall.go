package reclab

import (
	"slices"
	"time"
)

const (
	stallCheckInterval = 10 * time.Millisecond
	minStallDelay      = 100 * time.Millisecond // shortest delay of a timer that counts as a stall
	stallMargin        = 2 * time.Second        // a stall may delay questions asked so long before its end
)

// A stallMonitor detects stalls: times at which this process did not run, so that a timer is more than 100 ms late.
type stallMonitor struct {
	stopping, stopped chan struct{}
	stalls            []stall // valid after stop
}

// A stall is a period in which this process did not run.
type stall struct{ from, to time.Time }

// newStallMonitor starts a goroutine that records stalls, until stop is called.
func newStallMonitor() *stallMonitor {
	m := &stallMonitor{stopping: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		for {
			begin := time.Now()
			select {
			case <-m.stopping:
				return
			case <-time.After(stallCheckInterval):
			}
			if now := time.Now(); now.Sub(begin) > stallCheckInterval+minStallDelay {
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

// removeStalledQuestions removes the questions that were asked during one of stalls or shortly before it.
func (r *Row) removeStalledQuestions(stalls []stall) {
	n := len(r.Questions)
	r.Questions = slices.DeleteFunc(r.Questions, func(q Question) bool {
		return slices.ContainsFunc(stalls, func(s stall) bool {
			return q.Begin.After(s.to.Add(-max(stallMargin, s.to.Sub(s.from)))) && q.Begin.Before(s.to)
		})
	})
	r.Stalled = n - len(r.Questions)
	r.countVerdicts()
}
