package hedge

import "time"

// A Policy changes settings for the calls that match a route, see [WithRoute]. A field with its zero value changes
// nothing: the setting of the client applies. With the zero Policy, a route only has its own latency.
type Policy struct {
	Off       bool          // true: calls are not hedged; contradicts Hedgeable
	Hedgeable bool          // true: calls are safe to send twice, whatever their method
	FirstByte bool          // true: the first byte of the body decides which attempt wins, see [WithFirstByte]; an error for gRPC
	Delay     time.Duration // fixed hedge delay, in place of the learned delays; 0: not set

	// BudgetPercent limits the hedges per 100 calls of the route, in addition to the budget of the host. It is in [0,
	// 400], or [NoBudget], with which no hedges are sent. 0 sets no limit for the route.
	BudgetPercent float64
}

// NoBudget is the BudgetPercent of a [Policy] with which no hedges are sent. 0 would mean that the route has no limit.
const NoBudget = -1
