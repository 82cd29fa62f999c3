package hedge

import "time"

// A Policy says what is different about some calls of a host, see [WithRoute]. With
// the zero Policy, only their latency is learned separately.
type Policy struct {
	Off       bool          // send once
	Hedgeable bool          // safe to send twice, whatever the method
	FirstByte bool          // as [WithFirstByte]; HTTP only
	Delay     time.Duration // hedge after each Delay instead of after the learned delays; 0: learned

	// BudgetPercent is how many hedges per 100 calls of the route are sent at most,
	// beside what the host's budget allows. 0 sets no such limit.
	BudgetPercent float64
}
