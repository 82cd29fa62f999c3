package dnshedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// background runs the goroutines of a Client that outlive a call. Close cancels and awaits them. The zero value needs
// init.
type background struct {
	ctx    context.Context // ends with Close; never changes
	cancel context.CancelFunc

	isClosed atomic.Bool // wg counts no more; stored under mu

	mu sync.Mutex     // guards wg's counting; it may be taken under any other lock but those of a server
	wg sync.WaitGroup // of what runs
}

func (b *background) init() { b.ctx, b.cancel = context.WithCancel(context.Background()) }

// addGoroutine counts a goroutine for waitForAll. The goroutine must call wg.Done. It reports false after cancelAll.
func (b *background) addGoroutine() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed.Load() {
		return false
	}
	b.wg.Add(1)
	return true
}

// spawnGoroutine calls f in a goroutine that waitForAll awaits. cancelAll cancels its context. It reports false after
// cancelAll.
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

// cancelAll cancels the context, and prevents new goroutines.
func (b *background) cancelAll() {
	b.mu.Lock()
	b.isClosed.Store(true)
	b.mu.Unlock()
	b.cancel()
}

// waitForAll waits until all goroutines have returned. It is called after cancelAll.
func (b *background) waitForAll() { b.wg.Wait() }
