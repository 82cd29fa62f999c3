package policy

import (
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An Eligibility holds the facts that decide whether a call may be hedged. Each true field, and each number above 0, is a reason to send
// the call only once. The zero value permits hedging.
type Eligibility struct {
	SwitchedOff bool // hedging is switched off for every call of the adapter
	RouteOff    bool // the call's route is sent once, unless the caller allows hedging
	Hedge       int  // the call is part of a hedge of another process and states its number; 0: it states none
	IsNested    bool // the call is made within a hedged call to the same target
	Unrepeated  bool // the call cannot be sent twice
	Unsafe      bool // the call is not known to be safe to send twice; the caller can override that
}

// Reason returns the reason why a call with the overrides o is sent only once, or [None] if it may be hedged. Every protocol decides by
// this function.
func (f Eligibility) Reason(o race.Overrides) observe.Reason {
	switch {
	case f.SwitchedOff, o.Never, f.RouteOff && !o.Allow:
		return observe.DeniedDisabled
	case o.Hedge > 0, f.Hedge > 0, f.IsNested:
		return observe.DeniedNested
	case f.Unrepeated:
		return observe.DeniedBody
	case f.Unsafe && !o.Allow:
		return observe.DeniedMethod
	}
	return None
}
