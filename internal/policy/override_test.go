package policy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// termed returns a key of an engine that has learned 20 calls of 100 ms, or none.
func termed(t *testing.T, c policy.Config, calls int) *policy.Key {
	k := policy.New(c).Key(policy.Name{Host: "h"})
	for range calls {
		var call policy.Call
		call.Begin(t.Context(), k, 0)
		time.Sleep(100 * time.Millisecond)
		call.End(policy.Outcome{Answered: true})
	}
	return k
}

func TestPolicyOverrideAppliesToItsCalls(t *testing.T) {
	const ms = time.Millisecond
	fixed := &policy.PolicyOverride{Hedges: 3, Fixed: true, Delay: 50 * ms}
	at0 := &policy.PolicyOverride{Hedges: 2, Fixed: true}
	for name, test := range map[string]struct {
		terms     *policy.PolicyOverride
		maxHedges int
		calls     int
		asked     time.Duration
		want      []time.Duration // nil: no plan
	}{
		"fixed":                       {fixed, 2, 20, 0, []time.Duration{50 * ms, 100 * ms, 150 * ms}},
		"fixed, and nothing is known": {fixed, 2, 9, 0, nil},
		"at once":                     {at0, 2, 20, 0, []time.Duration{0, 0}},
		"no hedges allowed":           {at0, 0, 20, 0, nil},
		"the caller asks for another": {fixed, 2, 20, 20 * ms, []time.Duration{20 * ms, 40 * ms, 60 * ms}},
		"fewer are learned":           {&policy.PolicyOverride{Hedges: 1}, 2, 20, 0, []time.Duration{100 * ms}},
		"more than are learned":       {&policy.PolicyOverride{Hedges: 4}, 2, 20, 0, []time.Duration{100 * ms, 200 * ms, 300 * ms, 400 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := policy.Config{Percentile: 0.9, MaxHedges: test.maxHedges, Share: 0.1, EstimatedRPS: 100, Burst: 2 * time.Second, HasShortBucket: true, MinDelay: ms, MaxKeys: 9}
				k := termed(t, c, test.calls)
				var call policy.Call
				p := call.BeginWithOverride(t.Context(), k, test.asked, test.terms)
				if test.want == nil {
					assert.Nil(t, p)
					return
				}
				require.NotNil(t, p)
				require.GreaterOrEqual(t, len(p.Delays), len(test.want))
				for i, want := range test.want {
					assert.InDelta(t, want, p.Delays[i], float64(want)/25, "delay %d; an estimate is exact to 1 %%", i)
				}
				if test.asked == 0 && k.Schedule() != nil {
					assert.Same(t, p, call.BeginWithOverride(t.Context(), k, 0, test.terms), "the schedule is cached")
					assert.NotSame(t, p, call.Begin(t.Context(), k, 0))
				}
			})
		})
	}
}

// TestRescheduledHedgeIsNoSlowCall checks that a hedge that a failure moves to an earlier time does not count its call as slow.
func TestRescheduledHedgeIsNoSlowCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := policy.Config{Percentile: 0.9, MaxHedges: 2, Share: 1, Burst: time.Second, MinDelay: 1, MaxKeys: 9}
		for _, moved := range []bool{false, true} {
			k := termed(t, c, 20)
			for range 20 {
				var call policy.Call
				call.BeginWithOverride(t.Context(), k, 0, &policy.PolicyOverride{Hedges: 2})
				if moved {
					call.MarkRescheduled()
				} else {
					time.Sleep(150 * time.Millisecond)
				}
				call.Admit(0)
				call.End(policy.Outcome{Answered: true})
			}
			assert.Equal(t, !moved, k.Snapshot().SlowShare > policy.SlowLimit/2, "moved: %v, slow: %v", moved, k.Snapshot().SlowShare)
		}
	})
}

// TestSlowMarkerIsNoHedge checks that no hedge starts at a slow marker of its own, even if hedges are rescheduled.
func TestSlowMarkerIsNoHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := policy.Config{Percentile: 0.9, MaxHedges: 2, Share: 4, Burst: time.Second, MinDelay: 1, MaxKeys: 9}
		k := termed(t, c, 20)
		var call policy.Call
		p := call.BeginWithOverride(t.Context(), k, 0, &policy.PolicyOverride{Hedges: 1, Fixed: true, Delay: 50 * time.Millisecond})
		require.Len(t, p.Delays, 2, "the delay of a hedge, and a slow marker")
		call.MarkRescheduled()
		assert.True(t, call.Admit(0))
		call.Ended(1)
		assert.False(t, call.Admit(1), "before it has passed")
		time.Sleep(200 * time.Millisecond)
		assert.False(t, call.Admit(1), "and after it")
	})
}

// TestAdmitRequestOfImmediateHedgeKeepsDenialOfCall checks that the denial of an immediate hedge is not stored as the denial of its call,
// because no delay has passed.
func TestAdmitRequestOfImmediateHedgeKeepsDenialOfCall(t *testing.T) {
	var c policy.Call
	c.Begin(t.Context(), policy.New(policy.Config{MaxKeys: 1}).Key(policy.Name{Host: "h"}), 0)
	require.False(t, c.AdmitRequest(policy.Immediate, policy.HedgeRequest{}, policy.None))
	assert.Equal(t, policy.None, c.Denied)
	require.False(t, c.Admit(0))
	assert.Equal(t, observe.DeniedBudget, c.Denied)
	require.False(t, c.AdmitRequest(0, policy.HedgeRequest{}, observe.DeniedNotReady))
	assert.Equal(t, observe.DeniedNotReady, c.Denied)
}
