package dnshedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// A background counts and cancels the goroutines of a Client that outlive a call. Client.Close cancels their context
// and waits for them. init must be called before first use.
type background struct {
	ctx    context.Context // ends with Close; never changes
	cancel context.CancelFunc

	isClosed atomic.Bool // no goroutine is started any more; stored under mu

	mu sync.Mutex     // guards the counting of wg; it may be locked while any lock is held except a server's
	wg sync.WaitGroup // counts the running goroutines
}

func (b *background) init() { b.ctx, b.cancel = context.WithCancel(context.Background()) }

// addGoroutine counts a goroutine in wg. It returns true if the caller may start the goroutine, which must then call
// wg.Done. It returns false after cancelAll.
func (b *background) addGoroutine() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed.Load() {
		return false
	}
	b.wg.Add(1)
	return true
}

// spawnGoroutine calls f in a new goroutine and returns true. cancelAll cancels the context of f, and wg counts it
// until f has returned. After cancelAll, spawnGoroutine does not call f and returns false.
func (b *background) spawnGoroutine(f func(context.Context)) bool {
	if !b.addGoroutine() {
		return false
	}
	go func() {
		defer b.wg.Done()
		f(b.ctx)
	}()
	return true
}

// cancelAll cancels the context of all goroutines. After that, addGoroutine and spawnGoroutine return false.
func (b *background) cancelAll() {
	b.mu.Lock()
	b.isClosed.Store(true)
	b.mu.Unlock()
	b.cancel()
}

// A detachedContext has the values of a caller's context, but ends only when the Client is closed. So an exchange can
// outlast its caller.
type detachedContext struct {
	context.Context                 // of the Client
	values          context.Context // of the caller
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
