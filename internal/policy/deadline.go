package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A deadlineCheck denies a hedge that is unlikely to succeed before the deadline of the call. This is so if the remaining
// time is shorter than the expected latency of the hedge, or the median latency of the key if that is not known.
type deadlineCheck struct{}

// deny implements [admissionCheck]. It allows all hedges of a call without a deadline.
func (deadlineCheck) deny(a admission) observe.Reason {
	if !a.deadline.IsZero() && a.deadline.Sub(a.now) < a.expectedLatency() {
		return observe.DeniedDeadline
	}
	return None
}

// expectedLatency returns the expected latency of the hedge, or 0 if it is not known.
func (a *admission) expectedLatency() time.Duration {
	if a.ExpectedLatency > 0 || a.schedule == nil {
		return a.ExpectedLatency
	}
	return a.schedule.Median
}
