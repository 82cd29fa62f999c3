package policy

import "github.com/gohedge/hedge/observe"

// A deadlineCheck denies hedges of calls whose deadline is nearer than the median latency.
type deadlineCheck struct{}

func (deadlineCheck) deny(a admission) observe.Reason {
	if !a.deadline.IsZero() && a.schedule != nil && a.deadline.Sub(a.now) < a.schedule.Median {
		return observe.DeniedDeadline
	}
	return None
}
