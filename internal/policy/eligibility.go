package policy

import (
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An Eligibility holds the facts that decide whether a call may be hedged. Each true field and each positive number is a reason
// to send the call without hedges. The zero value allows hedging.
type Eligibility struct {
	SwitchedOff bool // hedging is switched off for every call of the adapter
	Excluded    bool // an operator has forbidden hedges of calls like this one; the caller cannot allow them
	RouteOff    bool // hedging is off for the call's route, unless the caller allows hedging of this call
	// Hedge is positive if the call belongs to a hedge that another process has sent. It is the number of that hedge.
	Hedge         int
	IsNested      bool // the call is made within a hedged call to the same target
	NotRepeatable bool // the call cannot be sent twice, for example because its body can only be read once
	Unsafe        bool // the call may not be idempotent; the caller can allow hedging nevertheless
}

// Reason returns the reason why a call with the facts f must be sent without hedges, or [None] if the call may be hedged.
// The argument o holds the overrides of the call's caller.
func (f Eligibility) Reason(o race.Overrides) observe.Reason {
	switch {
	case f.SwitchedOff, f.Excluded, o.Never, f.RouteOff && !o.Allow:
		return observe.DeniedDisabled
	case o.Hedge > 0, f.Hedge > 0, f.IsNested:
		return observe.DeniedNested
	case f.NotRepeatable:
		return observe.DeniedBody
	case f.Unsafe && !o.Allow:
		return observe.DeniedMethod
	}
	return None
}
