// Package limit bounds how many requests a server works on at a time, and names the gRPC methods that a bound is not meant for.
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

	// Every request adds to these, in the order of its stages.
	requests, activeRequests atomic.Int64
}

// New returns n places.
func New(n int) *ConcurrencyLimit {
	return &ConcurrencyLimit{semaphore: semaphore.New(n), capacity: int64(n)}
}

// Capacity returns how many places there are.
func (p *ConcurrencyLimit) Capacity() int64 { return p.capacity }

// AddRequest counts a request that has come, and returns how many were there before it. The caller calls [Places.Leave] or [Place.Take] next.
func (p *ConcurrencyLimit) AddRequest() (before int64) { return p.requests.Add(1) - 1 }

// RemoveRequest counts a request as gone that has not got a place.
func (p *ConcurrencyLimit) RemoveRequest() { p.requests.Add(-1) }

// RequestCount returns how many requests have come, and have neither left nor given their place back.
func (p *ConcurrencyLimit) RequestCount() int64 { return p.requests.Load() }

// ActiveCount returns how many requests have a place.
func (p *ConcurrencyLimit) ActiveCount() int64 { return p.activeRequests.Load() }

// A Slot is the right to work on one request. Several handlers may work on it, such as a handler that goes on when the handler around it has
// returned. It is given back when the last of them returns. A nil Place is that of a request that needs none. Use [Places.NewPlace] to make a Place.
type Slot struct {
	limit    *ConcurrencyLimit
	handlers atomic.Int32 // handlers that work on the request; 0: the place was given back; notTaken
}

// notAcquired are the holders of a Place before [Place.Take].
const notAcquired = -1

// NewSlot returns a Place that is not taken yet.
func (p *ConcurrencyLimit) NewSlot() *Slot {
	place := &Slot{limit: p}
	place.handlers.Store(notAcquired)
	return place
}

// Take waits until the place is free. The error is that of ctx, if it ended before: the request has left then. The caller has called [Places.Come].
// A place that was released in the meantime is given back at once.
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

// IsPending reports whether the place was neither taken nor released.
func (p *Slot) IsPending() bool { return p.handlers.Load() == notAcquired }

// IsReleased reports whether the place was given back.
func (p *Slot) IsReleased() bool { return p.handlers.Load() == 0 }

// AddHandler adds a handler that works on the request, and that calls [Place.Work]. It reports false if the place is not taken, or was given back.
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

// RunHandler runs the handler that has got the place, may take it, or has joined, and lets go of the place, however work ends.
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

// Release gives the place back, whichever handlers go on, unless it was given back before. A place that is not taken yet is never taken.
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
