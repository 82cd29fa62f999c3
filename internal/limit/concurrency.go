// Package limit implements the concurrency limit of a server, and lists the gRPC methods to which the limit does not apply by default.
package limit

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/semaphore"
)

// ConcurrencyLimit lets a fixed number of requests be worked on at a time, first come first served. It is safe for concurrent use. Use [New] to make it.
type ConcurrencyLimit struct {
	semaphore *semaphore.Semaphore
	capacity  int64

	// A request is counted in requests from its arrival, and in activeRequests while it holds a slot.
	requests, activeRequests atomic.Int64
}

// New returns a limit of n slots.
func New(n int) *ConcurrencyLimit {
	return &ConcurrencyLimit{semaphore: semaphore.New(n), capacity: int64(n)}
}

// Capacity returns the number of slots.
func (p *ConcurrencyLimit) Capacity() int64 { return p.capacity }

// AddRequest counts a request that has arrived, and returns the number of requests before it. The caller must call
// [ConcurrencyLimit.RemoveRequest] or [Slot.Acquire] next.
func (p *ConcurrencyLimit) AddRequest() (before int64) { return p.requests.Add(1) - 1 }

// RemoveRequest uncounts a request that leaves without a slot.
func (p *ConcurrencyLimit) RemoveRequest() { p.requests.Add(-1) }

// RequestCount returns the number of requests that wait for a slot or hold a slot.
func (p *ConcurrencyLimit) RequestCount() int64 { return p.requests.Load() }

// ActiveCount returns the number of requests that hold a slot.
func (p *ConcurrencyLimit) ActiveCount() int64 { return p.activeRequests.Load() }

// A Slot is the permission to work on one request. Several handlers may share it, for example an outer handler that returns before the inner
// handler. The slot is returned when the last handler ends. A nil Slot is that of an exempt request. Use [ConcurrencyLimit.NewSlot] to make one.
type Slot struct {
	limit    *ConcurrencyLimit
	handlers atomic.Int32 // handlers that work on the request; 0: the slot was returned; notAcquired: before Acquire
}

// notAcquired is the value of Slot.handlers before [Slot.Acquire].
const notAcquired = -1

// NewSlot returns a Slot that is not acquired yet.
func (p *ConcurrencyLimit) NewSlot() *Slot {
	slot := &Slot{limit: p}
	slot.handlers.Store(notAcquired)
	return slot
}

// Acquire waits for a free slot. If ctx ends first, Acquire removes the request and returns the error of ctx. The caller must have called
// [ConcurrencyLimit.AddRequest]. If Release was called in the meantime, the slot is returned at once.
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

// IsPending reports whether the slot was neither acquired nor released.
func (p *Slot) IsPending() bool { return p.handlers.Load() == notAcquired }

// IsReleased reports whether the slot was returned.
func (p *Slot) IsReleased() bool { return p.handlers.Load() == 0 }

// AddHandler adds a handler that shares the slot and must call [Slot.RunHandler]. It reports false if the slot is not acquired, or was returned.
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

// RunHandler runs a handler that shares the slot. The slot is returned after the last handler, even if the handler panics. A nil Slot only runs
// work.
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

// Release returns the slot, even if handlers still run, unless it was returned before. A slot that is not acquired yet cannot be acquired
// afterwards.
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
