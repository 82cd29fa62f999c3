package race

import (
	"context"
	"strconv"
	"time"
)

// Overrides are the wishes of a caller for one call, of any protocol. Allow and Delay hold for the call alone: the contexts of its attempts do not
// have them, nor has that of [SingleAttemptContext]. Never holds for calls below as well.
type Overrides struct {
	Never  bool          // send the call once
	Allow  bool          // the call is safe to send twice, whatever its method
	Delay  time.Duration // between attempts, in place of the learned delays; 0: no wish
	Hedge  int           // number of the hedge that the call serves; 0: none
	Parent CallTarget    // the hedged call whose attempt makes this call; the zero value: none
}

// A CallTarget identifies the target of a call. A call within a hedged call to the same target is not hedged.
type CallTarget struct {
	HTTP   bool   // an HTTP request; its Target may be "", as for a file URL
	Target string // host, or target of a gRPC connection
	Method string // of gRPC
}

type overridesKey struct{}

// WithOverrides returns a context whose Overrides are those of ctx, changed by f.
func WithOverrides(ctx context.Context, f func(*Overrides)) context.Context {
	o := OverridesFrom(ctx)
	f(&o)
	return context.WithValue(ctx, overridesKey{}, o)
}

// OverridesFrom returns the Overrides of ctx; the zero value if it has none.
func OverridesFrom(ctx context.Context) Overrides {
	o, _ := ctx.Value(overridesKey{}).(Overrides)
	return o
}

// attemptOverrides returns the context value with the Overrides of attempt n, made from the Overrides in the context of the caller, parent. A zero
// call does not change the field Parent.
func attemptOverrides(parent context.Context, n int, call CallTarget) any {
	v := parent.Value(overridesKey{})
	o, _ := v.(Overrides)
	if !o.Allow && o.Delay == 0 && n == 0 && (call == CallTarget{} || call == o.Parent) {
		return v
	}
	if call != (CallTarget{}) {
		o.Parent = call
	}
	o.Allow, o.Delay = false, 0
	if n > 0 {
		o.Hedge = n
	}
	return o
}

// An attemptContext is the context of an attempt.
type attemptContext interface{ attemptContext() }

// SingleAttemptContext returns the context for the only attempt of a call without a race, and whether it differs from ctx. The context of an attempt is returned as it is.
func SingleAttemptContext(ctx context.Context) (once context.Context, changed bool) {
	if _, is := ctx.(attemptContext); is {
		return ctx, false
	}
	if o := OverridesFrom(ctx); !o.Allow && o.Delay == 0 {
		return ctx, false
	}
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, 0, CallTarget{})), true
}

// HedgeContext returns a context for work that serves hedge n of another process.
func HedgeContext(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, n, CallTarget{}))
}

// HedgeNumber parses the number of a hedge from the values of a header or metadata key. It is 0 if there is none, and 1 if a value is invalid.
func HedgeNumber(values []string) int {
	for _, v := range values {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			n = 1
		}
		if n > 0 {
			return int(n)
		}
	}
	return 0
}
