package policy

const (
	// When restoreWins hedges have won, the scale of the budget doubles, up to 1. When fewer than minWins of judgedHedges
	// hedges have won, the scale is halved.
	judgedHedges = 100
	minWins      = 2
	restoreWins  = 5

	minBudgetScale = 0.1 // minimum of the scale, which still allows some hedges to win
)

// A winRateThrottle reduces the budget of a key while few of its hedges win: the budget is multiplied by scale. Hedges that
// failures have started are not counted: they fail in an outage, which says nothing about hedges after delays. [Key].mu guards
// it.
type winRateThrottle struct {
	scale  float64 // factor of the budget, from minBudgetScale to 1
	hedges int     // number of hedges since scale was last reviewed
	wins   int     // number of hedges that won in that time
}

// withdrawHedge removes an admitted hedge that was not sent from the number of hedges. If a review of scale has reset that
// number since the hedge was admitted, the number stays 0.
func (y *winRateThrottle) withdrawHedge() { y.hedges = max(y.hedges-1, 0) }

// reviewScale reviews the scale of the budget after a call: it lowers the scale if few hedges have won,
// and raises it if many have. It does nothing until enough hedges or wins have been counted since the last review.
func (y *winRateThrottle) reviewScale() {
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
