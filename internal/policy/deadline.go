package policy

import "github.com/gohedge/hedge/observe"

// A deadlineCheck denies a hedge if less time than the median latency remains before the deadline of the call.
type deadlineCheck struct{}

func (deadlineCheck) deny(a admission) observe.Reason {
	if !a.deadline.IsZero() && a.schedule != nil && a.deadline.Sub(a.now) < a.schedule.Median {
		return observe.DeniedDeadline
	}
	return None
}
