package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestDeadlineCheckDeniesNearerThanMedian(t *testing.T) {
	s := &Schedule{Median: time.Second}
	for deadline, want := range map[time.Time]observe.Reason{
		{}:                           None,
		written.Add(time.Second - 1): observe.DeniedDeadline,
		written.Add(time.Second):     None,
		written.Add(-time.Second):    observe.DeniedDeadline,
	} {
		assert.Equal(t, want, deadlineCheck{}.deny(admission{now: written, deadline: deadline, schedule: s}), "%v", deadline)
	}
	assert.Equal(t, None, deadlineCheck{}.deny(admission{now: written, deadline: written}), "the median is not known")
	for latency, want := range map[time.Duration]observe.Reason{time.Minute: None, time.Minute + 1: observe.DeniedDeadline} {
		a := admission{HedgeRequest{ExpectedLatency: latency}, written, written.Add(time.Minute), &Schedule{Median: time.Hour}}
		assert.Equal(t, want, deadlineCheck{}.deny(a), "%v", latency)
	}
}
