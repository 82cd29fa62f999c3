package policy

import (
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// Eligibility are what an adapter knows of a call before it asks whether the call may be hedged.
type Eligibility struct {
	SwitchedOff bool // hedging is, for every call of the adapter
	RouteOff    bool // the call's route is sent once, unless the caller allows hedging
	Hedge       int  // the number of the hedge that the call itself says it is made for; 0: it says none
	Again       bool // it is what a call above, which is hedged, calls
	Unrepeated  bool // it cannot be sent twice
	Unsafe      bool // nothing but the caller may say that it is safe to send twice
}

// Refuse returns why a call of a caller who asks for o is sent once, or [None] if it may be
// hedged. It is the only place that decides this, for every protocol.
func (f Eligibility) Reason(o race.Overrides) observe.Reason {
	switch {
	case f.SwitchedOff, o.Never, f.RouteOff && !o.Allow:
		return observe.DeniedDisabled
	case o.Hedge > 0, f.Hedge > 0, f.Again:
		return observe.DeniedNested
	case f.Unrepeated:
		return observe.DeniedBody
	case f.Unsafe && !o.Allow:
		return observe.DeniedMethod
	}
	return None
}
