package race

import (
	"context"
	"strconv"
	"time"
)

// Overrides are settings for single calls, which a caller puts into the context of the call. Allow and Delay apply only to
// calls that are made directly with that context. They are not in the contexts of attempts. Never and Retry also apply to
// nested calls.
type Overrides struct {
	Never  bool          // send the call without hedges
	Allow  bool          // the caller declares that the call is safe to send twice
	Retry  bool          // the call repeats a call that has failed, so it deposits no tokens in a hedge budget
	Delay  time.Duration // time between attempts; 0: use the learned delays
	Hedge  int           // number of the hedge within which this call is nested; 0: none
	Parent CallTarget    // target of the hedged call within which this call is nested; zero: none
}

// A CallTarget identifies the target of a call. A call that is nested in a hedged call to the same target is not hedged,
// because the numbers of attempts would multiply.
type CallTarget struct {
	HTTP   bool   // the call is an HTTP request; Target may then be "", as for a file URL
	Target string // host of an HTTP request, or target of a gRPC connection
	Method string // gRPC method; "" for HTTP
}

// An overridesKey is the context key of Overrides.
type overridesKey struct{}

// WithOverrides returns a context derived from ctx with changed Overrides: f gets a copy of the Overrides of ctx and modifies
// it.
func WithOverrides(ctx context.Context, f func(*Overrides)) context.Context {
	o := OverridesFrom(ctx)
	f(&o)
	return context.WithValue(ctx, overridesKey{}, o)
}

// OverridesFrom returns the Overrides of ctx, or the zero value if ctx has none.
func OverridesFrom(ctx context.Context) Overrides {
	o, _ := ctx.Value(overridesKey{}).(Overrides)
	return o
}

// attemptOverrides returns the Overrides for the context of attempt n, or nil if there are none. They are the Overrides of
// parent, the caller's context, without those that apply to one call only.
//
// If call is not zero, it becomes their Parent. If n is positive, it becomes their Hedge.
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

// An attemptContext is a context that already has the Overrides of an attempt, such as an [Attempt].
type attemptContext interface{ attemptContext() }

// SingleAttemptContext returns the context for a call that is sent without hedges and without a race. It has the values of
// ctx, except for the Overrides that apply to one call only.
//
// If there are no such Overrides, or if ctx is already the context of an attempt, the result is ctx itself, and changed is
// false.
func SingleAttemptContext(ctx context.Context) (once context.Context, changed bool) {
	if _, is := ctx.(attemptContext); is {
		return ctx, false
	}
	if o := OverridesFrom(ctx); !o.Allow && o.Delay == 0 {
		return ctx, false
	}
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, 0, CallTarget{})), true
}

// HedgeContext returns a context for the work that a server does for hedge n of a client. Calls with this context are not
// hedged, because that would multiply the number of attempts.
func HedgeContext(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, n, CallTarget{}))
}

// HedgeNumber returns the number of the hedge that a request belongs to, according to the values of a header or a metadata
// key. It is the first number above 0, or 0 if there is none. A value that is not a number from 0 to 65535 counts as 1.
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
