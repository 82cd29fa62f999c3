// Package semaphore lets a fixed number of callers work at a time. A caller that comes when all places are taken waits for one, first come first served.
package semaphore

import (
	"container/list"
	"context"
	"sync"
)

// A Semaphore has places. It is safe for concurrent use. Use [New] to make one.
type Semaphore struct {
	mu                 sync.Mutex
	capacity, acquired int
	waiters            list.List // of channels, each closed when its owner gets a place; empty while a place is free
}

// New returns a Semaphore of n places, which are free.
func New(n int) *Semaphore { return &Semaphore{capacity: n} }

// Acquire takes a place, and waits for one if there is none. It returns the error of ctx, and takes none, if that has ended or
// ends before.
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
	case <-mine: // too late for it
		s.acquired--
		s.wakeWaiters()
	default:
		s.waiters.Remove(here)
	}
	return ctx.Err()
}

// Release gives a place back.
func (s *Semaphore) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired--
	s.wakeWaiters()
}

// wakeWaiters gives free places to those who have waited for longest. The caller holds mu.
func (s *Semaphore) wakeWaiters() {
	for s.acquired < s.capacity && s.waiters.Len() > 0 {
		close(s.waiters.Remove(s.waiters.Front()).(chan struct{}))
		s.acquired++
	}
}
