package fleet

import (
	"context"
	"net/netip"
	"time"
)

const maxMore = 16 // times that a task asks for more servers

// search looks for more servers of a task. Its fields belong to the goroutine that asks.
type search struct {
	fleet *Fleet
	more  func(context.Context, Effort, <-chan struct{}) ([]netip.AddrPort, error) // Task.More

	running   bool
	times     int             // that more was called
	needed    bool            // the servers found are to be asked at once
	need      chan struct{}   // closed when they are; of the last call of more
	paid      bool            // the budget has paid for a hedge to one of them
	exhausted Effort          // with which more has found none
	why       error           // of more, for that
	found     chan found      // capacity 1: what more returned; nil: it was never called
	ctx       context.Context // more's
	stop      func()          // ends it
}

// found is what more returned.
type found struct {
	servers []netip.AddrPort
	err     error
	effort  Effort
}

// useful reports whether there may be more servers, and nobody looks for them.
func (s *search) useful(e Effort) bool {
	return s.more != nil && e > s.exhausted && !s.running && s.times < maxMore
}

// start asks for more servers, and reports whether that is under way. It goes on when ctx ends.
func (s *search) start(ctx context.Context, e Effort) bool {
	if s.running {
		return true
	}
	if !s.useful(e) {
		return false
	}
	f := s.fleet
	f.mu.Lock()
	ok := f.enter()
	f.mu.Unlock()
	if !ok {
		return false
	}
	if s.found == nil {
		s.found = make(chan found, 1)
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(f.ctx, cancel)
		s.stop = func() { stop(); cancel() }
	}
	s.times++
	s.running = true
	s.need = make(chan struct{})
	if s.needed {
		close(s.need)
	}
	go func(ctx context.Context, need <-chan struct{}, results chan<- found) {
		defer f.wg.Done()
		servers, err := s.more(ctx, e, need)
		results <- found{servers, err, e}
	}(s.ctx, s.need, s.found)
	return true
}

// want asks for more servers that are to be asked at once.
func (s *search) want(ctx context.Context, e Effort) {
	switch {
	case s.needed:
		s.start(ctx, e)
	case s.running:
		s.needed = true
		close(s.need)
	default:
		s.needed = true
		s.needed = s.start(ctx, e)
	}
}

// end lets what is looked for go on for a while: it is of use for others, as losers are.
func (s *search) end() {
	if s.stop != nil {
		time.AfterFunc(answerTime, s.stop)
	}
}
