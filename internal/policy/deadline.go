package policy

import "github.com/gohedge/hedge/observe"

// A deadlineCheck denies a hedge that is unlikely to succeed before the deadline of the call. This is so if the remaining
// time is shorter than the median latency of the key.
type deadlineCheck struct{}

// deny implements [admissionCheck]. It allows all hedges of a call without a deadline.
func (deadlineCheck) deny(a admission) observe.Reason {
	if !a.deadline.IsZero() && a.schedule != nil && a.deadline.Sub(a.now) < a.schedule.Median {
		return observe.DeniedDeadline
	}
	return None
}
