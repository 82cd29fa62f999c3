package dnshedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// A backgroundTasks counts and cancels the goroutines of a Client that outlive a call. Client.Close cancels their
// context and waits for them. init must be called before first use.
type backgroundTasks struct {
	ctx    context.Context // ends with Close; never changes
	cancel context.CancelFunc

	isClosed atomic.Bool // no goroutine is started any more; stored under mu

	mu sync.Mutex     // guards the counting of wg; it may be locked while any lock is held except a server's
	wg sync.WaitGroup // counts the running goroutines
}

func (b *backgroundTasks) init() { b.ctx, b.cancel = context.WithCancel(context.Background()) }

// addGoroutine registers a goroutine that the caller is about to start, so that Client.Close waits for its end. It
// returns true if the caller may start the goroutine, which must call b.wg.Done when it ends. It returns false if the
// Client is closed.
func (b *backgroundTasks) addGoroutine() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed.Load() {
		return false
	}
	b.wg.Add(1)
	return true
}

// spawnGoroutine calls f in a new goroutine, for whose end Client.Close waits, and returns true. The context that f
// gets ends when the Client is closed. If the Client is closed already, spawnGoroutine does not call f and returns
// false.
func (b *backgroundTasks) spawnGoroutine(f func(context.Context)) bool {
	if !b.addGoroutine() {
		return false
	}
	go func() {
		defer b.wg.Done()
		f(b.ctx)
	}()
	return true
}

// cancelAll ends the context of all background goroutines, because the Client is closed. No further goroutine can be
// started: addGoroutine and spawnGoroutine then return false.
func (b *backgroundTasks) cancelAll() {
	b.mu.Lock()
	b.isClosed.Store(true)
	b.mu.Unlock()
	b.cancel()
}

// A detachedContext has the values of a caller's context, but ends only when the Client is closed. An exchange can
// therefore outlive its caller.
type detachedContext struct {
	context.Context                 // of the Client
	values          context.Context // of the caller
}

// detachContext returns a context for an exchange that outlives its caller. It has the values of ctx, the caller's
// context, and ends with client, the context of the Client.
func detachContext(client, ctx context.Context) context.Context {
	if _, ok := ctx.(*clientQuery); ok || ctx == context.Background() { // without values
		return client
	}
	return detachedContext{client, context.WithoutCancel(ctx)}
}

func (d detachedContext) Value(key any) any { return d.values.Value(key) }

// AfterFunc calls f in a new goroutine when the Client is closed. The returned function stop prevents the call. It
// returns false if f has been started, or if stop was called before.
func (d detachedContext) AfterFunc(f func()) (stop func() bool) {
	// Without this method, context.AfterFunc would start a goroutine for each call.
	return context.AfterFunc(d.Context, f)
}
