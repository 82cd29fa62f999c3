// Package semaphore implements a counting semaphore that grants permits in the order of requests, and in which waiting can be
// cancelled.
package semaphore

import (
	"container/list"
	"context"
	"sync"
)

// A Semaphore limits how many callers hold a permit at the same time. Permits are granted in the order of the requests. It
// must be made with [New], and is safe for concurrent use.
type Semaphore struct {
	mu                 sync.Mutex // guards the fields that follow
	capacity, acquired int        // number of all permits, and of the permits in use
	// waiters is a list of chan struct{}, one for each waiting Acquire. A channel is closed when its Acquire gets a permit. The
	// list is empty while a permit is free.
	waiters list.List
}

// New returns a Semaphore with n free permits.
func New(n int) *Semaphore { return &Semaphore{capacity: n} }

// Acquire takes a permit. If all permits are in use, it waits until permits were granted to all earlier callers and another
// permit is free. If ctx has ended or ends during the wait, Acquire takes no permit and returns the error of ctx.
func (s *Semaphore) Acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.acquired < s.capacity {
		s.acquired++
		s.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	here := s.waiters.PushBack(mine)
	s.mu.Unlock()
	select {
	case <-mine:
	case <-ctx.Done():
	}
	if ctx.Err() == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-mine: // the permit was granted when ctx ended
		s.acquired--
		s.wakeWaiters()
	default:
		s.waiters.Remove(here)
	}
	return ctx.Err()
}

// Release returns one permit. It must be called once for each successful Acquire.
func (s *Semaphore) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired--
	s.wakeWaiters()
}

// wakeWaiters grants free permits to the callers that have waited longest. The caller must hold mu.
func (s *Semaphore) wakeWaiters() {
	for s.acquired < s.capacity && s.waiters.Len() > 0 {
		close(s.waiters.Remove(s.waiters.Front()).(chan struct{}))
		s.acquired++
	}
}
