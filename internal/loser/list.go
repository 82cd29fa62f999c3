package loser

import (
	"container/list"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A List holds the losers that were allowed to finish, so that their connections can be reused. If there are more than Max,
// the oldest loser is cancelled. Max must not change after the first use. A List is safe for concurrent use.
type List struct {
	Max int // maximum number of losers

	mu     sync.Mutex // guards losers
	losers list.List  // list of *entry, oldest first
}

// An entry is one loser in a [List].
type entry struct {
	attempt *race.Attempt // the loser
	timer   *time.Timer   // cancels the loser if it has not finished in time
}

// EndOptions say whether a loser is cancelled at once or may finish.
type EndOptions struct {
	// Grace is the time that the loser has to finish; 0 means that it is cancelled at once.
	Grace time.Duration
	// ReportsConn is true if a [Guard] observes the connections of attempts. Then an attempt for which no connection was
	// observed has none, and is cancelled at once.
	ReportsConn bool
	// Prompt makes the loser be cancelled at once if its [Guard] allows that. It is for servers with a Limiter, which then need
	// not start to work on the request.
	Prompt bool
}

// EndLoser ends the attempt a, which has lost its race. It either cancels a and returns nil, or lets a finish. In the second
// case, it returns a function that the caller must call when a has ended.
func (l *List) EndLoser(a *race.Attempt, t EndOptions) (ended func()) {
	if t.Grace <= 0 || isWaitingForConn(a, t.ReportsConn) || t.Prompt && canCancelNow(a) {
		a.Cancel()
		return nil
	}
	return l.Add(a, t.Grace)
}

// isWaitingForConn reports whether the attempt a still waits for a connection, so that its cancellation closes none. If the state
// of the connection is unknown, it returns reports, which must be true if a guard would have observed a connection.
func isWaitingForConn(a *race.Attempt, reports bool) bool {
	switch connState(a) {
	case connUnknown:
		return reports
	case connReady:
		return false
	default:
		return true
	}
}

// canCancelNow reports whether the attempt a would be cancelled without a delay. That is always so if a has no guard.
func canCancelNow(a *race.Attempt) bool {
	g := guardOf(a)
	return g == nil || g.canCancelNow()
}

// Add adds the loser a to the list, so that a may finish. It cancels a after the time grace, at the deadline of a, or when
// the list has more than Max newer losers. The caller must call remove when a has ended.
func (l *List) Add(a *race.Attempt, grace time.Duration) (remove func()) {
	if at, ok := a.Deadline(); ok {
		grace = min(grace, time.Until(at))
	}
	e := &entry{attempt: a, timer: time.AfterFunc(grace, a.Cancel)}

	l.mu.Lock()
	element := l.losers.PushBack(e)
	var oldest *entry
	if l.losers.Len() > l.Max {
		oldest = l.losers.Remove(l.losers.Front()).(*entry)
	}
	l.mu.Unlock()
	if oldest != nil {
		oldest.timer.Stop()
		oldest.attempt.Cancel()
	}
	return func() {
		e.timer.Stop()
		l.mu.Lock()
		l.losers.Remove(element) // does nothing if it has been removed
		l.mu.Unlock()
	}
}

// Len returns the number of losers in the list.
func (l *List) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.losers.Len()
}
