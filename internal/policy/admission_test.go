package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

// checkedKey returns a key for which every check except the experiment denies a hedge of a call whose deadline is now.
func checkedKey(shadow bool) *Key {
	c := Config{MaxKeys: 1, Share: 0.1, EstimatedRPS: 100, Burst: time.Second, MaxHedges: 1, Shadow: shadow}
	k := New(c).Key(Name{Host: "h"})
	k.schedule.Store(&Schedule{Median: time.Second, slowMarkerIndex: -1})
	k.safetyChecks.outage.slowShare = 1
	k.safetyChecks.pushback = pushbackCheck{share: 1, stopped: true}
	k.inFlight.hedges.Store(MaxInFlight)
	for k.account.Spend(written, nil, 1) {
	}
	return k
}

func TestAdmitReportsTheFirstReasonInOrder(t *testing.T) {
	k, deadline := checkedKey(true), written
	for _, step := range []struct {
		reason observe.Reason
		remove func()
	}{
		{observe.DeniedSlow, func() { k.safetyChecks.outage.slowShare = 0 }},
		{observe.DeniedPaused, func() { k.safetyChecks.pushback = pushbackCheck{} }},
		{observe.DeniedDeadline, func() { deadline = time.Time{} }},
		{observe.DeniedInFlight, func() { k.inFlight.hedges.Store(0) }},
		{observe.DeniedBudget, func() { k.account.Refund(written, nil, 1) }},
		{observe.DeniedShadow, func() {}},
	} {
		assert.Equal(t, step.reason, k.Admit(written, false, deadline, HedgeRequest{}))
		assert.EqualValues(t, 1, k.Snapshot().Denied[step.reason])
		step.remove()
	}
	assert.Equal(t, observe.DeniedBudget, k.Admit(written, false, deadline, HedgeRequest{}), "shadow mode spends the budget")
}

func TestAdmitAllocatesNothing(t *testing.T) {
	k := checkedKey(false)
	k.Admit(written, false, written, HedgeRequest{}) // makes the map of denials
	assert.Zero(t, testing.AllocsPerRun(100, func() { k.Admit(written, false, written, HedgeRequest{}) }))
	k.safetyChecks.resetResults()
	k.inFlight.hedges.Store(0)
	k.account.Refund(written, nil, 5)
	admitted := 0
	assert.Zero(t, testing.AllocsPerRun(3, func() {
		if k.Admit(written, false, time.Time{}, HedgeRequest{}) == None {
			admitted++
		}
	}))
	assert.Equal(t, 4, admitted)
}
