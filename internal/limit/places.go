// Package limit bounds how many requests a server works on at a time, and names the gRPC methods that a bound is not meant for.
package limit

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/semaphore"
)

// Places lets a fixed number of requests be worked on at a time, first come first served. It is safe for concurrent use. Use [New] to make it.
type Places struct {
	semaphore *semaphore.Semaphore
	limit     int64

	// Every request adds to these, in the order of its stages.
	inside, working atomic.Int64
}

// New returns n places.
func New(n int) *Places { return &Places{semaphore: semaphore.New(n), limit: int64(n)} }

// Limit returns how many places there are.
func (p *Places) Limit() int64 { return p.limit }

// Come counts a request that has come, and returns how many were there before it. The caller calls [Places.Leave] or [Place.Take] next.
func (p *Places) Come() (before int64) { return p.inside.Add(1) - 1 }

// Leave counts a request as gone that has not got a place.
func (p *Places) Leave() { p.inside.Add(-1) }

// Inside returns how many requests have come, and have neither left nor given their place back.
func (p *Places) Inside() int64 { return p.inside.Load() }

// Working returns how many requests have a place.
func (p *Places) Working() int64 { return p.working.Load() }

// A Place is the right to work on one request. Several handlers may work on it, such as a handler that goes on when the handler around it has
// returned. It is given back when the last of them returns. A nil Place is that of a request that needs none. Use [Places.NewPlace] to make a Place.
type Place struct {
	of      *Places
	holders atomic.Int32 // handlers that work on the request; 0: the place was given back; notTaken
}

// notTaken are the holders of a Place before [Place.Take].
const notTaken = -1

// NewPlace returns a Place that is not taken yet.
func (p *Places) NewPlace() *Place {
	place := &Place{of: p}
	place.holders.Store(notTaken)
	return place
}

// Take waits until the place is free. The error is that of ctx, if it ended before: the request has left then. The caller has called [Places.Come].
// A place that was released in the meantime is given back at once.
func (p *Place) Take(ctx context.Context) error {
	if err := p.of.semaphore.Acquire(ctx); err != nil {
		p.of.Leave()
		return err
	}
	p.of.working.Add(1)
	if !p.holders.CompareAndSwap(notTaken, 1) {
		p.giveBack()
	}
	return nil
}

// IsPending reports whether the place was neither taken nor released.
func (p *Place) IsPending() bool { return p.holders.Load() == notTaken }

// IsReleased reports whether the place was given back.
func (p *Place) IsReleased() bool { return p.holders.Load() == 0 }

// Join adds a handler that works on the request, and that calls [Place.Work]. It reports false if the place is not taken, or was given back.
func (p *Place) Join() bool {
	for {
		n := p.holders.Load()
		if n <= 0 {
			return false
		}
		if p.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Work runs the handler that has got the place, may take it, or has joined, and lets go of the place, however work ends.
func (p *Place) Work(work func()) {
	if p != nil {
		defer p.leave()
	}
	work()
}

func (p *Place) leave() {
	for {
		n := p.holders.Load()
		if n == 0 {
			return
		}
		if p.holders.CompareAndSwap(n, max(n-1, 0)) {
			if n == 1 {
				p.giveBack()
			}
			return
		}
	}
}

// Release gives the place back, whichever handlers go on, unless it was given back before. A place that is not taken yet is never taken.
func (p *Place) Release() {
	if p.holders.Swap(0) > 0 {
		p.giveBack()
	}
}

func (p *Place) giveBack() {
	p.of.working.Add(-1)
	p.of.inside.Add(-1)
	p.of.semaphore.Release()
}
