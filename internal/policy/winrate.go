package policy

const (
	// After restoreWins wins, the scale of the budget doubles, up to 1. If fewer than minWins of judgedHedges hedges win, it is halved.
	judgedHedges = 100
	minWins      = 2
	restoreWins  = 5

	minBudgetScale = 0.1 // the least scale, even if no hedge wins
)

// A winRateThrottle reduces the budget by a scale while few hedges win.
type winRateThrottle struct {
	scale  float64 // factor of the budget, in [minBudgetScale, 1]
	hedges int     // number of hedges since the last decision about scale
	wins   int     // number of wins since then
}

// withdrawHedge uncounts a hedge that was not sent, unless a decision about scale has reset the count.
func (y *winRateThrottle) withdrawHedge() { y.hedges = max(y.hedges-1, 0) }

// record changes the scale if enough hedges or wins were counted for a decision.
func (y *winRateThrottle) record(*Result) {
	switch {
	case y.wins >= restoreWins:
		y.scale, y.hedges, y.wins = min(1, 2*y.scale), 0, 0
	case y.hedges >= judgedHedges:
		if y.wins < minWins {
			y.scale = max(minBudgetScale, y.scale/2)
		}
		y.hedges, y.wins = 0, 0
	}
}
