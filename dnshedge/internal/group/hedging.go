package group

import (
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// budgetMargin is the factor by which hedges may exceed the budget when the slow delay is computed. It is more than 1,
// because some hundred samples cannot tell 5 % from 6 %. A delay that grew after each burst of losses would not hedge
// these losses.
//
// Nevertheless, hedges stay within the budget, which the token buckets enforce.
const budgetMargin = 1.5

// MaxHedges is the maximum number of attempts of a question besides the primary. Documented waiting times hold for four
// attempts in all, of which the last one tries server after server.
const MaxHedges = 3

// Hedging is the hedging configuration of a Client, with all defaults filled in. It must not change while a Pool uses
// it.
type Hedging struct {
	FixedDelay    time.Duration // delay of a single hedge that needs no budget; 0: delays are learned
	Percentile    float64       // least share of responses that must be faster than the slow delay, between 0 and 1
	MaxHedges     int           // maximum number of hedges per question
	Share         float64       // hedges as a share of queries, between 0 and 1
	MaxPerSecond  float64       // maximum number of hedges per second; 0: no limit
	MinDelay      time.Duration // shortest hedge delay
	LocalMinDelay time.Duration // MinDelay for servers on this machine
	MaxDelay      time.Duration // longest slow delay
}

// PolicyConfig returns the configuration for the policy engine that holds the latency keys of the servers.
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
