package nameservers

import (
	"context"
	"net/netip"
	"time"
)

const maxSearches = 16 // maxSearches is the number of FindMore calls of a task.

// A serverSearch looks for more servers of a task. Its fields belong to the goroutine of the queryLoop.
type serverSearch struct {
	pool        *Pool
	findServers func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) // Task.FindMore

	running        bool
	calls          int               // of more
	needed         bool              // the servers are to be asked at once
	neededAtOnce   chan struct{}     // argument of the last call of more; closed when needed
	paidByBudget   bool              // a hedge to a found server is paid for
	exhaustedScope SearchScope       // with which more has found none
	err            error             // of more, for exhaustedEffort
	results        chan searchResult // capacity 1; nil: more was never called
	ctx            context.Context   // of more
	stop           func()            // ends ctx
}

// A searchResult is the result of Task.FindMore.
type searchResult struct {
	servers []netip.AddrPort
	err     error
	scope   SearchScope
}

// canSearch reports whether a search with this effort may find servers and none is running.
func (s *serverSearch) canSearch(e SearchScope) bool {
	return s.findServers != nil && e > s.exhaustedScope && !s.running && s.calls < maxSearches
}

// startSearch calls FindMore, and reports whether a search is running. It continues after ctx.
func (s *serverSearch) startSearch(ctx context.Context, e SearchScope) bool {
	if s.running {
		return true
	}
	if !s.canSearch(e) {
		return false
	}
	f := s.pool
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
	s.neededAtOnce = make(chan struct{})
	if s.needed {
		close(s.neededAtOnce)
	}
	go func(ctx context.Context, need <-chan struct{}, results chan<- searchResult) {
		defer f.wg.Done()
		servers, err := s.findServers(ctx, e, need)
		results <- searchResult{servers, err, e}
	}(s.ctx, s.neededAtOnce, s.results)
	return true
}

// requireServers starts a search for servers that are to be asked at once.
func (s *serverSearch) requireServers(ctx context.Context, e SearchScope) {
	switch {
	case s.needed:
		s.startSearch(ctx, e)
	case s.running:
		s.needed = true
		close(s.neededAtOnce)
	default:
		s.needed = true
		s.needed = s.startSearch(ctx, e)
	}
}

// stopLater ends a running search after a while, because its result is of use for other tasks.
func (s *serverSearch) stopLater() {
	if s.stop != nil {
		time.AfterFunc(answerTimeout, s.stop)
	}
}
