package nameservers

import (
	"context"
	"net/netip"
)

// maxSearches is the maximum number of FindServers calls of a Task.
const maxSearches = 16

// A serverSearch finds the addresses of further servers for a Task. It calls Task.FindServers in the background when
// all servers with known addresses were queried. Only the goroutine of the queryLoop may use its fields.
type serverSearch struct {
	pool        *Pool
	findServers func(context.Context, SearchScope, <-chan struct{}) ([]netip.AddrPort, error) // Task.FindServers

	running        bool              // a FindServers call is running
	calls          int               // number of FindServers calls so far
	isUrgent       bool              // the search is urgent: a found server is queried at once
	urgentChan     chan struct{}     // argument of the last call; closed when needed becomes true
	paidByBudget   bool              // the hedge budget has paid for a query to a found server
	exhaustedScope SearchScope       // widest scope in which a call has found no servers
	err            error             // error of the call with exhaustedScope
	results        chan searchResult // receives the result of each call; nil before the first call
	ctx            context.Context   // context of all calls
	stop           func()            // cancels ctx
}

// A searchResult is the result of one call of Task.FindServers: the addresses of further servers, or an error. The scope of
// the call limits the server names that it may look up.
type searchResult struct {
	servers []netip.AddrPort
	err     error
	scope   SearchScope
}

// canStart reports whether a search for further servers with the scope e may start. It is false while a search is
// running, and after maxSearches searches. It is also false if a search with the same or a wider scope has found no
// servers.
func (s *serverSearch) canStart(e SearchScope) bool {
	return s.findServers != nil && e > s.exhaustedScope && !s.running && s.calls < maxSearches
}

// startSearch starts a search for further servers of the zone with the scope e, on a new goroutine. If a search is
// running already, it starts none. It returns true if a search is running afterwards.
//
// The search uses the values of ctx, but does not end with ctx. The function in stop ends it.
func (s *serverSearch) startSearch(ctx context.Context, e SearchScope) bool {
	if s.running {
		return true
	}
	if !s.canStart(e) {
		return false
	}
	p := s.pool
	p.mu.Lock()
	ok := p.addGoroutine()
	p.mu.Unlock()
	if !ok {
		return false
	}
	if s.results == nil {
		s.results = make(chan searchResult, 1)
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(p.ctx, cancel)
		s.stop = func() { stop(); cancel() }
	}
	s.calls++
	s.running = true
	s.urgentChan = make(chan struct{})
	if s.isUrgent {
		close(s.urgentChan)
	}
	go func(ctx context.Context, need <-chan struct{}, results chan<- searchResult) {
		defer p.wg.Done()
		servers, err := s.findServers(ctx, e, need)
		results <- searchResult{servers, err, e}
	}(s.ctx, s.urgentChan, s.results)
	return true
}

// ensureUrgentSearch searches for further servers because the Task needs another server now. When the search finds one,
// it is queried at once. A running search becomes urgent. Otherwise a search with the scope e starts.
func (s *serverSearch) ensureUrgentSearch(ctx context.Context, e SearchScope) {
	switch {
	case s.isUrgent:
		s.startSearch(ctx, e)
	case s.running:
		s.isUrgent = true
		close(s.urgentChan)
	default:
		s.isUrgent = true
		s.isUrgent = s.startSearch(ctx, e)
	}
}
