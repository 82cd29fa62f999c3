package race

import (
	"context"
	"strconv"
	"time"
)

// Overrides are what a caller asks for one call, whatever its protocol. What it allows and
// chooses holds for that call and for nothing below it: the context of every attempt has other
// Overrides, and so has [Once]. What it forbids holds below as well.
type Overrides struct {
	Never bool          // send once
	Allow bool          // safe to send twice, whatever the method says
	Delay time.Duration // instead of the learned one; 0: none
	Hedge int           // the number of the hedge that the call is made for; 0: for none
	Above Called        // by the hedged call whose attempt this is made in, see [Style]; the zero value: there is none
}

// Called is what is called. Calls of the same are not hedged one within another.
type Called struct {
	HTTP   bool   // by a request; the Target may be "", as that of a file URL is
	Target string // a host, or the target of a gRPC connection
	Method string // of gRPC
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

// below returns what the context of attempt n carries, as a value of a context. The parent is the caller's. The call is what
// is called; the zero value: it is not said.
func below(parent context.Context, n int, call Called) any {
	v := parent.Value(overridesKey{})
	o, _ := v.(Overrides)
	if !o.Allow && o.Delay == 0 && n == 0 && (call == Called{} || call == o.Above) {
		return v
	}
	if call != (Called{}) {
		o.Above = call
	}
	o.Allow, o.Delay = false, 0
	if n > 0 {
		o.Hedge = n
	}
	return o
}

// attemptContext is the context of an attempt, which has nothing that holds for one call alone.
type attemptContext interface{ attemptContext() }

// Once returns the context of the one attempt of a call that is made without a race, and whether
// that is another than ctx. Of an attempt's context it returns the same.
func Once(ctx context.Context) (once context.Context, changed bool) {
	if _, is := ctx.(attemptContext); is {
		return ctx, false
	}
	if o := OverridesFrom(ctx); !o.Allow && o.Delay == 0 {
		return ctx, false
	}
	return context.WithValue(ctx, overridesKey{}, below(ctx, 0, Called{})), true
}

// ForHedge returns a context for what is done on behalf of hedge n of another process.
func ForHedge(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, overridesKey{}, below(ctx, n, Called{}))
}

// HedgeNumber returns the number of the hedge that a request is made for, from the
// values of its header or metadata. It is 0 for a request that is made for none, and
// 1 if a value cannot be read.
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
