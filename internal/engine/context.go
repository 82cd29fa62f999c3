package engine

import (
	"context"
	"time"

	"github.com/gohedge/hedge/observe"
)

// Overrides are what a caller asks for one call, whatever its protocol.
type Overrides struct {
	Never bool          // send once
	Allow bool          // safe to send twice, whatever the method says
	Delay time.Duration // instead of the learned one; 0: none
	Hedge int           // the number of the hedge that the call is made for; 0: for none
}

type overridesKey struct{}

// WithOverrides returns a context that carries what ctx carries, changed by f.
func WithOverrides(ctx context.Context, f func(*Overrides)) context.Context {
	o := OverridesFrom(ctx)
	f(&o)
	return context.WithValue(ctx, overridesKey{}, o)
}

// OverridesFrom returns what ctx carries.
func OverridesFrom(ctx context.Context) Overrides {
	o, _ := ctx.Value(overridesKey{}).(Overrides)
	return o
}

// ForAttempt returns a context for what is done on behalf of an attempt. What its caller
// allowed and chose for one call does not hold for the calls that this one makes; what the
// caller forbade does.
func ForAttempt(ctx context.Context) context.Context {
	if o := OverridesFrom(ctx); !o.Allow && o.Delay == 0 {
		return ctx
	}
	return WithOverrides(ctx, func(o *Overrides) { o.Allow, o.Delay = false, 0 })
}

// ForHedge returns a context for what is done on behalf of a hedge, which is not hedged itself.
func ForHedge(ctx context.Context, n int) context.Context {
	return WithOverrides(ctx, func(o *Overrides) { o.Allow, o.Delay, o.Hedge = false, 0, n })
}

// Facts are what an adapter knows of a call before it asks whether the call may be hedged.
type Facts struct {
	SwitchedOff bool // hedging is, for every call of the adapter
	RouteOff    bool // the call's route is sent once, unless the caller allows hedging
	Hedge       int  // the number of the hedge that the call itself says it is made for; 0: it says none
	Unrepeated  bool // it cannot be sent twice
	Unsafe      bool // nothing but the caller may say that it is safe to send twice
}

// Refuses returns why a call of a caller who asks for o is sent once, or [None] if it may be
// hedged. It is the only place that decides this, for every protocol.
func (o Overrides) Refuses(f Facts) observe.Reason {
	switch {
	case f.SwitchedOff, o.Never, f.RouteOff && !o.Allow:
		return observe.DeniedDisabled
	case o.Hedge > 0, f.Hedge > 0:
		return observe.DeniedNested
	case f.Unrepeated:
		return observe.DeniedBody
	case f.Unsafe && !o.Allow:
		return observe.DeniedMethod
	}
	return None
}
