package hedge

import "time"

// A Policy changes settings for the calls of a route, see [WithRoute]. A field with its zero value changes nothing: the
// settings of the client apply. With the zero Policy, a route only has its own latency.
type Policy struct {
	Off       bool          // calls are sent once; contradicts Hedgeable
	Hedgeable bool          // calls are safe to send twice, whatever their method
	FirstByte bool          // as [WithFirstByte]; an error for gRPC
	Delay     time.Duration // fixed hedge delay, in place of the learned delays; 0: not set

	// BudgetPercent limits the hedges per 100 calls of the route, in addition to the budget of the host. It is in [0,
	// 400]. 0 sets no limit of its own; [NoBudget] allows no hedge.
	BudgetPercent float64
}

// NoBudget is the BudgetPercent of a [Policy] that allows no hedges.
const NoBudget = -1
