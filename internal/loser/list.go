package loser

import (
	"container/list"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A List holds the losers that may finish. When there are more than Max, the oldest loser is cancelled. It is safe for concurrent use; Max
// must not change after the first use.
type List struct {
	Max int

	mu     sync.Mutex // guards losers
	losers list.List  // of *entry, oldest first
}

// An entry is a loser in a [List].
type entry struct {
	attempt *race.Attempt
	timer   *time.Timer // cancels the attempt
}

// EndOptions decide whether a loser is cancelled at once or may finish.
type EndOptions struct {
	// Grace is the time that the loser has to finish; 0 means that it is cancelled at once.
	Grace time.Duration
	// ReportsConn means that the [Guard] observes the connection of the attempt. If so, an attempt without an observed connection has none,
	// and is cancelled at once.
	ReportsConn bool
	// Prompt cancels the loser at once if its [Guard] allows it. A server behind a Limiter then need not start to work on the request.
	Prompt bool
}

// EndLoser ends a, which has lost. It either cancels a and returns nil, or lets a finish and returns a function that must be called when a
// has ended.
func (l *List) EndLoser(a *race.Attempt, t EndOptions) (ended func()) {
	if t.Grace <= 0 || hasNoConn(a, t.ReportsConn) || t.Prompt && canCancelNow(a) {
		a.Cancel()
		return nil
	}
	return l.Add(a, t.Grace)
}

// hasNoConn reports whether a still waits for a connection. If the state of the connection is not known, it returns reports: a guard that
// reports connections has seen none.
func hasNoConn(a *race.Attempt, reports bool) bool {
	switch connOf(a) {
	case connUnknown:
		return reports
	case connReady:
		return false
	default:
		return true
	}
}

// canCancelNow reports whether a would be cancelled without delay.
func canCancelNow(a *race.Attempt) bool {
	g := guardOf(a)
	return g == nil || g.canCancelNow()
}

// Add lets a run until it has run for grace, until its deadline, or until more than Max losers run. The caller calls the returned function
// when a has ended.
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
