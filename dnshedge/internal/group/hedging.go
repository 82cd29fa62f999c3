package group

import (
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// budgetMargin is the cost of the slow delay as a multiple of the budget. Some hundred samples cannot tell 5 % from 6
// %, and a delay that grows after each burst of losses would not hedge them. The token buckets enforce the budget
// itself.
const budgetMargin = 1.5

// MaxHedges is the maximum number of attempts of a question besides the primary. A race may have more. The documented
// waiting times hold for four attempts in all; the last one goes from server to server.
const MaxHedges = 3

// Hedging is the hedging configuration of a Client, with all defaults filled in.
type Hedging struct {
	FixedDelay    time.Duration // delay of a single hedge without a budget; 0: delays are learned
	Percentile    float64       // least share of answers that must be faster than the slow delay
	MaxHedges     int           // per question
	Share         float64       // hedges as a share of queries
	MaxPerSecond  float64       // hedges per second; 0: no limit
	MinDelay      time.Duration // shortest hedge delay
	LocalMinDelay time.Duration // MinDelay for servers on this machine
	MaxDelay      time.Duration // longest slow delay
}

// PolicyConfig returns the configuration of the policy engine that holds the servers' latency keys.
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
