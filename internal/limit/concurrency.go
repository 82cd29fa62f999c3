// Package limit implements the concurrency limit of a server, and lists the gRPC methods to which the limit does not apply by default.
package limit

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/semaphore"
)

// A ConcurrencyLimit limits the number of requests that a server handles at the same time. Further requests wait in the order
// of their arrival. It must be made with [New], and is safe for concurrent use.
type ConcurrencyLimit struct {
	semaphore *semaphore.Semaphore // has one permit for each slot
	capacity  int64                // number of slots

	// requests is the number of requests that wait for a slot or have one. activeRequests is the number of requests that have
	// one.
	requests, activeRequests atomic.Int64
}

// New returns a ConcurrencyLimit with n slots, so that n requests can be handled at the same time.
func New(n int) *ConcurrencyLimit {
	return &ConcurrencyLimit{semaphore: semaphore.New(n), capacity: int64(n)}
}

// Capacity returns the number of slots.
func (p *ConcurrencyLimit) Capacity() int64 { return p.capacity }

// AddRequest counts a request that has arrived. It returns the number of requests that were waiting for a slot or had one
// before that. The caller must call [Slot.Acquire] or [ConcurrencyLimit.RemoveRequest] next.
func (p *ConcurrencyLimit) AddRequest() (before int64) { return p.requests.Add(1) - 1 }

// RemoveRequest undoes AddRequest for a request that was rejected, or gave up, before it got a slot.
func (p *ConcurrencyLimit) RemoveRequest() { p.requests.Add(-1) }

// RequestCount returns the number of requests that wait for a slot or have one.
func (p *ConcurrencyLimit) RequestCount() int64 { return p.requests.Load() }

// ActiveCount returns the number of requests that have a slot.
func (p *ConcurrencyLimit) ActiveCount() int64 { return p.activeRequests.Load() }

// A Slot is the permission to handle one request. Several handlers may share it, for example a timeout handler that returns
// early and the handler that it has called. The slot becomes free when the last handler has returned. A request that needs no
// slot has a nil *Slot.
//
// A Slot must be made with [ConcurrencyLimit.NewSlot]. It is safe for concurrent use.
type Slot struct {
	limit    *ConcurrencyLimit // limit that the slot counts against
	handlers atomic.Int32      // number of handlers that share the slot; 0: released; notAcquired: Acquire was not called
}

// notAcquired is the value of Slot.handlers before [Slot.Acquire].
const notAcquired = -1

// NewSlot returns a Slot for one request. [Slot.Acquire] must be called before the request is handled.
func (p *ConcurrencyLimit) NewSlot() *Slot {
	slot := &Slot{limit: p}
	slot.handlers.Store(notAcquired)
	return slot
}

// Acquire waits until the request may be handled, that is, until a slot is free. The caller must have called
// [ConcurrencyLimit.AddRequest] before. If ctx ends first, Acquire undoes AddRequest and returns the error of ctx.
//
// If Release is called during the wait, Acquire still waits for the slot, frees it at once, and returns nil.
func (p *Slot) Acquire(ctx context.Context) error {
	if err := p.limit.semaphore.Acquire(ctx); err != nil {
		p.limit.RemoveRequest()
		return err
	}
	p.limit.activeRequests.Add(1)
	if !p.handlers.CompareAndSwap(notAcquired, 1) {
		p.returnSlot()
	}
	return nil
}

// IsPending reports whether the slot was neither acquired nor released so far.
func (p *Slot) IsPending() bool { return p.handlers.Load() == notAcquired }

// IsReleased reports whether the slot was released, by Release or because the last handler has returned.
func (p *Slot) IsReleased() bool { return p.handlers.Load() == 0 }

// AddHandler registers one more handler that shares the slot. The caller must then run this handler with [Slot.RunHandler].
// AddHandler returns false, and registers nothing, if the slot was not acquired yet or was released.
func (p *Slot) AddHandler() bool {
	for {
		n := p.handlers.Load()
		if n <= 0 {
			return false
		}
		if p.handlers.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// RunHandler runs a handler that shares the slot, by calling work. When the last handler of the slot has returned or
// panicked, RunHandler releases the slot. If p is nil, it only calls work.
func (p *Slot) RunHandler(work func()) {
	if p != nil {
		defer p.removeHandler()
	}
	work()
}

// removeHandler records that a handler has returned. It releases the slot if that was the last handler.
func (p *Slot) removeHandler() {
	for {
		n := p.handlers.Load()
		if n == 0 {
			return
		}
		if p.handlers.CompareAndSwap(n, max(n-1, 0)) {
			if n == 1 {
				p.returnSlot()
			}
			return
		}
	}
}

// Release frees the slot although handlers of the request may still be running. If it is called before Acquire, Acquire
// frees the slot at once. Further calls have no effect.
func (p *Slot) Release() {
	if p.handlers.Swap(0) > 0 {
		p.returnSlot()
	}
}

// returnSlot makes the slot available for another request, and removes its request from the counts.
func (p *Slot) returnSlot() {
	p.limit.activeRequests.Add(-1)
	p.limit.requests.Add(-1)
	p.limit.semaphore.Release()
}
