package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

func TestWinRateThrottleHalvesBudgetOfHedgesThatDoNotWin(t *testing.T) {
	y := winRateThrottle{scale: 1}
	for _, want := range []float64{0.5, 0.25, 0.125, minBudgetScale, minBudgetScale} {
		y.hedges, y.wins = judgedHedges, minWins-1
		y.reviewScale()
		assert.Equal(t, winRateThrottle{scale: want}, y)
	}
	y.hedges, y.wins = judgedHedges, minWins
	y.reviewScale()
	assert.Equal(t, minBudgetScale, y.scale, "enough hedges won")
	for _, want := range []float64{0.2, 0.4, 0.8, 1} {
		y.wins = restoreWins
		y.reviewScale()
		assert.Equal(t, want, y.scale)
	}
	y.hedges = 0
	y.withdrawHedge()
	assert.Zero(t, y.hedges)
}

// TestWinRateIgnoresHedgesAfterFailures has many hedges that failures have started: none of them wins, or all do.
func TestWinRateIgnoresHedgesAfterFailures(t *testing.T) {
	k := New(Config{MaxHedges: 2, Share: 1, EstimatedRPS: 100, Burst: 10 * time.Second}).Key(Name{Host: "a"})
	for winner := -1; winner <= 1; winner += 2 {
		for range 3 * judgedHedges {
			var c Call
			c.Begin(t.Context(), k, 0)
			if !assert.True(t, c.AdmitRequest(race.AfterFailure, HedgeRequest{OtherBackend: true}, None)) {
				return
			}
			c.Ended(1)
			c.End(Outcome{Answered: winner > 0, Winner: winner, LatencyUnknown: true})
		}
		assert.Equal(t, winRateThrottle{scale: 1}, k.safetyChecks.winRate)
	}
	request := HedgeRequest{AfterFailure: true}
	k.safetyChecks.winRate.hedges = 7
	k.Withdraw(time.Now(), observe.DeniedNotReady, request)
	assert.Equal(t, 7, k.safetyChecks.winRate.hedges)
}
