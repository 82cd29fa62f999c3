package policy

const (
	// The scale of the budget is doubled, up to 1, after restoreWins wins. It is halved if fewer than minWins of judgedHedges hedges win.
	judgedHedges = 100
	minWins      = 2
	restoreWins  = 5

	minBudgetScale = 0.1 // of the budget remains, however few hedges win
)

// A winRateThrottle reduces the budget while few hedges win.
type winRateThrottle struct {
	scale  float64 // factor of the budget, in [minBudgetScale, 1]
	hedges int     // since scale was last judged
	wins   int     // of these hedges
}

// withdrawHedge removes a hedge that was not sent. The hedge may have been judged in the meantime.
func (y *winRateThrottle) withdrawHedge() { y.hedges = max(y.hedges-1, 0) }

// record updates the scale when enough hedges or wins were counted.
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
