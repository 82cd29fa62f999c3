package group

import (
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// budgetMargin is how many times the budget the slow delay may cost. A window of
// some hundred answers cannot tell 5 % from 6 %, and a delay that grows after
// each burst of losses does not hedge them. The buckets enforce the budget itself.
const budgetMargin = 1.5

// MaxHedges is how many queries a question may have besides the first. A race may have more, but four in all make the waits that
// documents state: the fourth goes from server to server.
const MaxHedges = 3

// Hedging says when questions are hedged, with all defaults filled in.
type Hedging struct {
	FixedDelay    time.Duration // hedge once after this time, without a budget; 0: the delays are learned
	Percentile    float64       // the share of answers that come early enough
	MaxHedges     int           // of a question
	Share         float64       // of the queries that may be hedges
	MaxPerSecond  float64       // hedges; 0: no bound
	MinDelay      time.Duration
	LocalMinDelay time.Duration // MinDelay of servers on this machine
	MaxDelay      time.Duration
}

// PolicyConfig returns the policy for the keys of servers.
func (h *Hedging) PolicyConfig() policy.Config {
	share := budgetMargin * h.Share // a server's bucket enforces the share itself
	return policy.Config{
		Percentile:   h.Percentile,
		MaxHedges:    1, // an exchange computes the delays itself
		Share:        share,
		EstimatedRPS: Burst / share,
		Burst:        time.Second,
		MinDelay:     h.LocalMinDelay,
		InitialDelay: initialDelay,
		MaxPerSecond: h.MaxPerSecond,
		MaxKeys:      4 * MaxServers,
	}
}
