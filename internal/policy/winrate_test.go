package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWinRateThrottleHalvesBudgetOfHedgesThatDoNotWin(t *testing.T) {
	y := winRateThrottle{scale: 1}
	for _, want := range []float64{0.5, 0.25, 0.125, minBudgetScale, minBudgetScale} {
		y.hedges, y.wins = judgedHedges, minWins-1
		y.record(nil)
		assert.Equal(t, winRateThrottle{scale: want}, y)
	}
	y.hedges, y.wins = judgedHedges, minWins
	y.record(nil)
	assert.Equal(t, minBudgetScale, y.scale, "enough hedges won")
	for _, want := range []float64{0.2, 0.4, 0.8, 1} {
		y.wins = restoreWins
		y.record(nil)
		assert.Equal(t, want, y.scale)
	}
	y.hedges = 0
	y.withdrawHedge()
	assert.Zero(t, y.hedges)
}
