package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestPushbackCheckDeniesWhileManyAnswersPushBack(t *testing.T) {
	var c pushbackCheck
	for range 6 {
		c.recordPushback(written, 0)
	}
	assert.Equal(t, None, c.deny(admission{now: written}), "too few")
	c.recordPushback(written, 0)
	assert.Equal(t, observe.DeniedPaused, c.deny(admission{now: written}))
	assert.Equal(t, None, c.deny(admission{now: written, HedgeRequest: HedgeRequest{OtherBackend: true}}))
	c.record(&Result{})
	assert.Equal(t, observe.DeniedPaused, c.deny(admission{now: written}), "a failure does not count as answer")
	answers := 0
	for ; c.isPaused(written); answers++ {
		c.record(&Result{Answered: true})
	}
	assert.Equal(t, 97, answers)
}

func TestPushbackCheckPausesForRequestedTime(t *testing.T) {
	var c pushbackCheck
	c.recordPushback(written, time.Second)
	assert.Zero(t, c.pausedUntil(), "one answer")
	for range 3 {
		c.recordPushback(written, time.Second)
	}
	assert.Equal(t, written.Add(time.Second), c.pausedUntil())
	assert.Equal(t, observe.DeniedPaused, c.deny(admission{now: written.Add(time.Second - 1)}))
	assert.Equal(t, None, c.deny(admission{now: written.Add(time.Second)}))
	c.recordPushback(written, time.Hour)
	assert.Equal(t, written.Add(maxPause), c.pausedUntil())
}
