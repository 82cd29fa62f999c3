package dnshedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// background is what runs for a Client without a caller, until Close.
type background struct {
	ctx    context.Context // ends with Close; never changes
	cancel context.CancelFunc

	isClosed atomic.Bool // wg counts no more; stored under mu

	mu sync.Mutex     // guards wg's counting; it may be taken under any other lock but those of a server
	wg sync.WaitGroup // of what runs
}

func (b *background) init() { b.ctx, b.cancel = context.WithCancel(context.Background()) }

// addGoroutine counts a goroutine that wait waits for, and that must call wg.Done, or
// reports false after end.
func (b *background) addGoroutine() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed.Load() {
		return false
	}
	b.wg.Add(1)
	return true
}

// spawnGoroutine calls f in a goroutine that wait waits for, with a context that end ends,
// or reports false after end.
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

// end ends the context, and lets nothing begin any more.
func (b *background) cancelAll() {
	b.mu.Lock()
	b.isClosed.Store(true)
	b.mu.Unlock()
	b.cancel()
}

// wait waits until nothing runs, after end.
func (b *background) waitForAll() { b.wg.Wait() }
