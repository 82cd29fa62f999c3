package policy

import "github.com/gohedge/hedge/observe"

// A deadlineCheck denies a hedge if the time that remains before the deadline of the call is shorter than the median latency of
// the key. Such a hedge is unlikely to succeed in time.
type deadlineCheck struct{}

// deny implements [admissionCheck]. It allows hedges of calls without a deadline.
func (deadlineCheck) deny(a admission) observe.Reason {
	if !a.deadline.IsZero() && a.schedule != nil && a.deadline.Sub(a.now) < a.schedule.Median {
		return observe.DeniedDeadline
	}
	return None
}
