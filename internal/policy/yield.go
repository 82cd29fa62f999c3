package policy

const (
	// Hedges that do not win spend less of the budget. They are judged at every restoreWins wins, which double the share of the budget, and
	// at every judgedHedges hedges, which halve it if fewer than minWins won.
	judgedHedges = 100
	minWins      = 2
	restoreWins  = 5

	minBudgetScale = 0.1 // of the budget remains, however few hedges win
)

// A hedgeYield scales the budget by how many hedges win.
type hedgeYield struct {
	scale  float64 // factor of the budget, in [minBudgetScale, 1]
	hedges int     // since scale was last judged
	wins   int     // of these hedges
}

// withdrawHedge takes back a hedge that was not sent. It may have been judged since.
func (y *hedgeYield) withdrawHedge() { y.hedges = max(y.hedges-1, 0) }

// record judges the hedges if there are enough of them.
func (y *hedgeYield) record(*Result) {
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
