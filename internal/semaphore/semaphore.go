// Package semaphore implements a counting semaphore with a first-in, first-out queue and cancellation.
package semaphore

import (
	"container/list"
	"context"
	"sync"
)

// A Semaphore has a fixed number of permits. It is safe for concurrent use. Use [New] to make one.
type Semaphore struct {
	mu                 sync.Mutex
	capacity, acquired int
	waiters            list.List // of channels, each closed when its owner gets a permit; empty while a permit is free
}

// New returns a Semaphore with n free permits. Its queue is first in, first out.
func New(n int) *Semaphore { return &Semaphore{capacity: n} }

// Acquire takes a permit. If none is free, it waits in the queue. If ctx has ended or ends first, Acquire takes no permit and returns the
// error of ctx.
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

// Release returns a permit that Acquire took.
func (s *Semaphore) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired--
	s.wakeWaiters()
}

// wakeWaiters grants free permits to the longest waiting callers. The caller holds mu.
func (s *Semaphore) wakeWaiters() {
	for s.acquired < s.capacity && s.waiters.Len() > 0 {
		close(s.waiters.Remove(s.waiters.Front()).(chan struct{}))
		s.acquired++
	}
}
