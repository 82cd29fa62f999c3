package nameservers

import (
	"context"
	"net/netip"
	"time"
)

const maxSearches = 16 // times that a task asks for more servers

// serverSearch looks for more servers of a task. Its fields belong to the goroutine that asks.
type serverSearch struct {
	fleet *Pool
	more  func(context.Context, Effort, <-chan struct{}) ([]netip.AddrPort, error) // Task.More

	running         bool
	calls           int               // that more was called
	needed          bool              // the servers found are to be asked at once
	neededSignal    chan struct{}     // closed when they are; of the last call of more
	paidByBudget    bool              // the budget has paid for a hedge to one of them
	exhaustedEffort Effort            // with which more has found none
	err             error             // of more, for that
	results         chan searchResult // capacity 1: what more returned; nil: it was never called
	ctx             context.Context   // more's
	stop            func()            // ends it
}

// found is what more returned.
type searchResult struct {
	servers []netip.AddrPort
	err     error
	effort  Effort
}

// canFind reports whether there may be more servers, and nobody looks for them.
func (s *serverSearch) canFind(e Effort) bool {
	return s.more != nil && e > s.exhaustedEffort && !s.running && s.calls < maxSearches
}

// start asks for more servers, and reports whether that is under way. It goes on when ctx ends.
func (s *serverSearch) startSearch(ctx context.Context, e Effort) bool {
	if s.running {
		return true
	}
	if !s.canFind(e) {
		return false
	}
	f := s.fleet
	f.mu.Lock()
	ok := f.addGoroutine()
	f.mu.Unlock()
	if !ok {
		return false
	}
	if s.results == nil {
		s.results = make(chan searchResult, 1)
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(f.ctx, cancel)
		s.stop = func() { stop(); cancel() }
	}
	s.calls++
	s.running = true
	s.neededSignal = make(chan struct{})
	if s.needed {
		close(s.neededSignal)
	}
	go func(ctx context.Context, need <-chan struct{}, results chan<- searchResult) {
		defer f.wg.Done()
		servers, err := s.more(ctx, e, need)
		results <- searchResult{servers, err, e}
	}(s.ctx, s.neededSignal, s.results)
	return true
}

// want asks for more servers that are to be asked at once.
func (s *serverSearch) requestServers(ctx context.Context, e Effort) {
	switch {
	case s.needed:
		s.startSearch(ctx, e)
	case s.running:
		s.needed = true
		close(s.neededSignal)
	default:
		s.needed = true
		s.needed = s.startSearch(ctx, e)
	}
}

// stopLater lets what is looked for go on for a while: it is of use for others, as losers are.
func (s *serverSearch) stopLater() {
	if s.stop != nil {
		time.AfterFunc(answerTimeout, s.stop)
	}
}
