package nameservers

import (
	"context"
	"net/netip"
	"time"
)

// maxSearches is the largest number of FindServers calls of a task.
const maxSearches = 16

// A serverSearch runs the FindServers calls of a task. Only the goroutine of the queryLoop uses its fields.
type serverSearch struct {
	pool        *Pool
	findServers func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) // Task.FindServers

	running        bool
	calls          int               // number of calls
	needed         bool              // the found servers are queried at once
	neededAtOnce   chan struct{}     // argument of the last call; closed when needed is set
	paidByBudget   bool              // the hedge budget has paid for a query to a found server
	exhaustedScope SearchScope       // widest scope that has found no server
	err            error             // error of the call with exhaustedScope
	results        chan searchResult // capacity 1; nil: no call yet
	ctx            context.Context   // context of the calls
	stop           func()            // cancels ctx
}

// A searchResult is the result of a FindServers call.
type searchResult struct {
	servers []netip.AddrPort
	err     error
	scope   SearchScope
}

// canSearch reports whether a search with a scope can start: none is running, no search with that scope has found
// nothing, and calls are left.
func (s *serverSearch) canSearch(e SearchScope) bool {
	return s.findServers != nil && e > s.exhaustedScope && !s.running && s.calls < maxSearches
}

// startSearch calls FindServers on a new goroutine, unless a search is running. It reports whether a search is
// running now. The search does not end with ctx, see stopLater.
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

// requireServers starts a search whose servers are queried at once, or turns the running search into one.
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

// stopLater stops a running search after answerTimeout. Until then it continues, because its result is of use for
// other tasks.
func (s *serverSearch) stopLater() {
	if s.stop != nil {
		time.AfterFunc(answerTimeout, s.stop)
	}
}
