package group

import (
	"sync"
	"time"
)

// A RecheckTimer calls a function when it is due. The due time may change while the timer runs: whenever the wait has
// passed, the timer asks again for the remaining time. Stop prevents the call. A RecheckTimer must be started at most
// once.
type RecheckTimer struct {
	mu        sync.Mutex // guards the fields below
	timer     *time.Timer
	isStopped bool
}

// Start starts the timer. remaining returns the time until f is due. Start calls it, and the timer calls it again in a
// new goroutine whenever that time has passed. If that result is 0 or less, this goroutine calls f once.
func (a *RecheckTimer) Start(remaining func() time.Duration, f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(remaining(), func() {
		wait := remaining()
		a.mu.Lock()
		isDue := !a.isStopped && wait <= 0
		if isDue {
			a.isStopped = true
		} else if !a.isStopped {
			a.timer.Reset(wait)
		}
		a.mu.Unlock()
		if isDue {
			f()
		}
	})
}

// Stop stops the timer, which must have been started. It returns true if the function f that was passed to Start has
// not been called and will not be called. It returns false if the call has started, or if the timer was stopped before.
func (a *RecheckTimer) Stop() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.isStopped
	a.isStopped = true
	return !over
}
