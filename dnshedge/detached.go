package dnshedge

import "context"

// A detachedContext has the values of a caller's context, but ends only when the Client is closed. So an exchange can
// outlast its caller.
type detachedContext struct {
	context.Context
	values context.Context
}

// detachContext returns a context for an exchange that outlasts its caller. client is the context of the Client, with
// which the result ends. ctx is the context of the caller, whose values the result has.
func detachContext(client, ctx context.Context) context.Context {
	if _, ok := ctx.(*clientQuery); ok || ctx == context.Background() { // without values
		return client
	}
	return detachedContext{client, context.WithoutCancel(ctx)}
}

func (d detachedContext) Value(key any) any { return d.values.Value(key) }

// AfterFunc lets package context register f without starting a goroutine; see context.AfterFunc.
func (d detachedContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(d.Context, f)
}
