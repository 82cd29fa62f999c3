// Package semaphore lets so many work at a time. Who comes when all places are taken waits for one, first come first served.
package semaphore

import (
	"container/list"
	"context"
	"sync"
)

// A Semaphore has places. It is safe for concurrent use. Use [New] to make one.
type Semaphore struct {
	mu      sync.Mutex
	free    int       // positive only while nobody waits
	waiting list.List // of channels, each closed when its owner gets a place
}

// New returns a Semaphore of n places, which are free.
func New(n int) *Semaphore { return &Semaphore{free: n} }

// Acquire takes a place, and waits for one if there is none. It returns the error of ctx, and takes none, if that has ended or
// ends before.
func (s *Semaphore) Acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	here := s.waiting.PushBack(mine)
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
		s.give()
	default:
		s.waiting.Remove(here)
	}
	return ctx.Err()
}

// Release gives a place back.
func (s *Semaphore) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give()
}

// give gives a place to who has waited for longest. The caller holds mu.
func (s *Semaphore) give() {
	if first := s.waiting.Front(); first != nil {
		close(s.waiting.Remove(first).(chan struct{}))
		return
	}
	s.free++
}
