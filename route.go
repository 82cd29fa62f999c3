package hedge

import "time"

// A Policy describes how some calls of a host differ from its other calls, see [WithRoute]. A field with its zero value changes
// nothing: the settings of the client apply. With the zero Policy, only the latency is learned separately.
type Policy struct {
	Off       bool          // send once; contradicts Hedgeable
	Hedgeable bool          // safe to send twice, whatever the method
	FirstByte bool          // as [WithFirstByte]; an error over gRPC
	Delay     time.Duration // hedge after each Delay instead of after the learned delays

	// BudgetPercent bounds the hedges per 100 calls of the route, in [0, 400]. The budget of the host bounds them as well. With 0,
	// only that bounds them. [NoBudget] sends no hedge.
	BudgetPercent float64
}

// NoBudget is the BudgetPercent of a [Policy] that pays for no hedge.
const NoBudget = -1
