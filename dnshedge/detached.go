package dnshedge

import "context"

// detached is a context that ends with the Client, and has the values of a caller's.
type detached struct {
	context.Context
	values context.Context
}

// detachContext returns a context that ends with client, the context of a Client, and has the values of ctx.
func detachContext(client, ctx context.Context) context.Context {
	if _, ok := ctx.(*waiter); ok || ctx == context.Background() { // without values
		return client
	}
	return detached{client, context.WithoutCancel(ctx)}
}

func (d detached) Value(key any) any { return d.values.Value(key) }

// AfterFunc does what context.AfterFunc does, which package context looks for: otherwise it takes a goroutine.
func (d detached) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(d.Context, f) }
