package policy

import (
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An Eligibility holds the facts by which a protocol decides whether a call may be hedged. Each true field, and each number above 0, is a reason to
// send the call once.
type Eligibility struct {
	SwitchedOff bool // hedging is switched off for every call of the adapter
	RouteOff    bool // the call's route is sent once, unless the caller allows hedging
	Hedge       int  // number of the hedge for which the call is made, as the call itself states; 0: it states none
	IsNested    bool // a hedged call above makes this call
	Unrepeated  bool // the call cannot be sent twice
	Unsafe      bool // only the caller may state that the call is safe to send twice
}

// Reason returns why a call whose caller asks for o is sent once, or [None] if it may be
// hedged. It is the only place that decides this, for every protocol.
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
