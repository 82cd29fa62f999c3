package policy_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// TestLastReportedChangeMatchesState pauses and resumes a key at random. After each step, the last reported change must match the state of
// the key.
func TestLastReportedChangeMatchesState(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := epoch
		upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
		told, bad, dropped := 0, false, 0
		var last [2]time.Time
		k := newKey(func(c *policy.Config) {
			c.Changed = func(key observe.KeyInfo, change policy.Change) {
				require.Equal(t, observe.KeyInfo{Host: "h"}, key)
				require.Equal(t, policy.KindPause, change.Kind, "no hedge was due")
				require.NotEqual(t, bad, change.Bad, "two equal changes are not reported in a row")
				at := &last[0]
				if bad = change.Bad; bad {
					at = &last[1]
					if change.Reason != observe.DeniedSlow { // as it stays for a while after a pause
						require.Equal(t, observe.DeniedPaused, change.Reason)
						require.True(t, change.Until.IsZero() || change.Until.After(now))
					}
				}
				require.True(t, at.IsZero() || now.Sub(*at) >= policy.MinChangeInterval)
				*at = now
				told, dropped = told+1, dropped+change.Dropped
			}
		})
		paused := func() bool {
			v := k.Snapshot()
			return v.PushbackStopped || now.Before(v.PausedUntil) || v.SlowShare > policy.SlowLimit
		}
		changes, was := 0, false
		done := func(n int) {
			for range n {
				k.RecordCall(now, policy.Result{Latency: ms, Answered: true, HasSlowMarker: true})
				if is := paused(); is != was {
					changes, was = changes+1, is
				}
			}
		}
		for range 150 {
			now = now.Add(upTo(2 * time.Second))
			if rng.IntN(2) == 0 {
				for range 8 {
					k.RecordPushback(now, 1+upTo(5*time.Second))
				}
			}
			done(rng.IntN(200))
		}
		now = now.Add(time.Minute)
		done(1000)
		assert.False(t, bad)
		now = now.Add(time.Minute)
		for range 20 {
			k.RecordPushback(now, time.Second)
		}
		done(1)
		assert.True(t, bad)
		assert.Equal(t, changes, told+dropped, "each change is reported or counted as dropped")
		assert.Positive(t, dropped)
		assert.Greater(t, told, 10)
	}
}
