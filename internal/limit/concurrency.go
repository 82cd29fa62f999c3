// Package limit implements the concurrency limit of a server, and lists the gRPC methods to which the limit does not apply by default.
package limit

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/semaphore"
)

// A ConcurrencyLimit limits the number of requests that a server works on at a time. Further requests wait in the order of their arrival.
// It is safe for concurrent use. Use [New] to make one.
type ConcurrencyLimit struct {
	semaphore *semaphore.Semaphore
	capacity  int64

	// A request is counted in requests from its arrival, and in activeRequests while it holds a slot.
	requests, activeRequests atomic.Int64
}

// New returns a ConcurrencyLimit with n slots.
func New(n int) *ConcurrencyLimit {
	return &ConcurrencyLimit{semaphore: semaphore.New(n), capacity: int64(n)}
}

// Capacity returns the number of slots.
func (p *ConcurrencyLimit) Capacity() int64 { return p.capacity }

// AddRequest counts a request that has arrived. It returns the number of requests that were counted before. The caller must call
// [ConcurrencyLimit.RemoveRequest] or [Slot.Acquire] next.
func (p *ConcurrencyLimit) AddRequest() (before int64) { return p.requests.Add(1) - 1 }

// RemoveRequest uncounts a request that gets no slot.
func (p *ConcurrencyLimit) RemoveRequest() { p.requests.Add(-1) }

// RequestCount returns the number of requests that wait for a slot or hold a slot.
func (p *ConcurrencyLimit) RequestCount() int64 { return p.requests.Load() }

// ActiveCount returns the number of requests that hold a slot.
func (p *ConcurrencyLimit) ActiveCount() int64 { return p.activeRequests.Load() }

// A Slot is the permission to work on one request. Several handlers may share it, such as an outer handler that returns before the inner
// handler. The slot is free again when the last handler has returned. Requests that need no slot have a nil Slot.
//
// Use [ConcurrencyLimit.NewSlot] to make one.
type Slot struct {
	limit    *ConcurrencyLimit
	handlers atomic.Int32 // number of handlers that share the slot; 0: it was released; notAcquired: before Acquire
}

// notAcquired is the value of Slot.handlers before [Slot.Acquire].
const notAcquired = -1

// NewSlot returns a Slot that is not acquired yet.
func (p *ConcurrencyLimit) NewSlot() *Slot {
	slot := &Slot{limit: p}
	slot.handlers.Store(notAcquired)
	return slot
}

// Acquire waits for a free slot. If ctx ends first, Acquire uncounts the request and returns the error of ctx. If Release was called in the
// meantime, the slot is free again at once. The caller must have called [ConcurrencyLimit.AddRequest].
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

// IsPending reports whether the slot was neither acquired nor released yet.
func (p *Slot) IsPending() bool { return p.handlers.Load() == notAcquired }

// IsReleased reports whether the slot was released, by Release or by the last handler.
func (p *Slot) IsReleased() bool { return p.handlers.Load() == 0 }

// AddHandler adds a handler that shares the slot; the handler must be run by [Slot.RunHandler]. It reports false if the slot is not
// acquired, or was released.
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

// RunHandler calls work, which is a handler that shares the slot. When the last handler returns or panics, the slot is released. With a nil
// Slot, RunHandler only calls work.
func (p *Slot) RunHandler(work func()) {
	if p != nil {
		defer p.removeHandler()
	}
	work()
}

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

// Release releases the slot even if handlers still run. Before Acquire, it makes a later Acquire release the slot at once. Further calls
// have no effect.
func (p *Slot) Release() {
	if p.handlers.Swap(0) > 0 {
		p.returnSlot()
	}
}

func (p *Slot) returnSlot() {
	p.limit.activeRequests.Add(-1)
	p.limit.requests.Add(-1)
	p.limit.semaphore.Release()
}
