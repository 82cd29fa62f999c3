package race

import (
	"context"
	"strconv"
	"time"
)

// Overrides are settings for single calls that a caller puts into a context. Allow and Delay apply to one call: contexts of attempts do not
// have them, and neither has the context of [SingleAttemptContext]. Never also applies to calls within that call.
type Overrides struct {
	Never  bool          // send the call once
	Allow  bool          // the call is safe to send twice, whatever its method
	Delay  time.Duration // time between attempts, in place of the learned delays; 0: learned delays
	Hedge  int           // number of the hedge within which the call is made; 0: none
	Parent CallTarget    // target of the hedged call within which the call is made; zero: none
}

// A CallTarget identifies the target of a call. A call within a hedged call to the same target is not hedged.
type CallTarget struct {
	HTTP   bool   // an HTTP request; its Target may be "", as for a file URL
	Target string // host, or target of a gRPC connection
	Method string // of gRPC
}

type overridesKey struct{}

// WithOverrides returns a context with the Overrides of ctx, as modified by f.
func WithOverrides(ctx context.Context, f func(*Overrides)) context.Context {
	o := OverridesFrom(ctx)
	f(&o)
	return context.WithValue(ctx, overridesKey{}, o)
}

// OverridesFrom returns the Overrides of ctx; zero Overrides if it has none.
func OverridesFrom(ctx context.Context) Overrides {
	o, _ := ctx.Value(overridesKey{}).(Overrides)
	return o
}

// attemptOverrides returns the context value that holds the Overrides in the context of attempt n. They derive from the Overrides of the
// parent, which is the caller's context. If call is not zero, it becomes their Parent.
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

// An attemptContext is a context that already has the Overrides of an attempt.
type attemptContext interface{ attemptContext() }

// SingleAttemptContext returns the context for a call that is sent only once, without a race: it lacks the Overrides that apply to one
// call. It reports whether the context differs from ctx. If ctx is the context of an attempt, it is returned unchanged.
func SingleAttemptContext(ctx context.Context) (once context.Context, changed bool) {
	if _, is := ctx.(attemptContext); is {
		return ctx, false
	}
	if o := OverridesFrom(ctx); !o.Allow && o.Delay == 0 {
		return ctx, false
	}
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, 0, CallTarget{})), true
}

// HedgeContext returns a context for work that a server does for hedge n of its client.
func HedgeContext(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, overridesKey{}, attemptOverrides(ctx, n, CallTarget{}))
}

// HedgeNumber parses the number of a hedge from the values of a header or a metadata key. It returns the first number above 0, or 0 if
// there is none. An invalid value counts as 1.
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
