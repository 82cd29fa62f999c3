package race

import (
	"container/list"
	"sync"
	"time"
)

// A Linger lets losers finish instead of cancelling them at once, and never more
// than Max together: one more, and the oldest is cancelled. It is safe for
// concurrent use; Max must not be changed once it is in use.
type Linger struct {
	Max int

	mu     sync.Mutex // guards losers
	losers list.List  // of *loser, oldest first
}

type loser struct {
	*Attempt
	timer *time.Timer
}

// add lets a run on without its caller for as long as grace, or until its deadline, or
// until the returned function is called.
func (l *Linger) add(a *Attempt, grace time.Duration) (forget func()) {
	a.detach()
	if at, ok := a.Deadline(); ok {
		grace = min(grace, time.Until(at))
	}
	me := &loser{Attempt: a}
	me.timer = time.AfterFunc(grace, func() { a.cancel(ErrLost) })

	l.mu.Lock()
	place := l.losers.PushBack(me)
	var oldest *loser
	if l.losers.Len() > l.Max {
		oldest = l.losers.Remove(l.losers.Front()).(*loser)
	}
	l.mu.Unlock()
	if oldest != nil {
		oldest.timer.Stop()
		oldest.cancel(ErrLost)
	}
	return func() {
		me.timer.Stop()
		l.mu.Lock()
		l.losers.Remove(place) // does nothing if it is gone already
		l.mu.Unlock()
	}
}

// Len returns the number of losers that run on.
func (l *Linger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.losers.Len()
}
