package dnshedge

import (
	"sync"
	"time"
)

// A recheckTimer calls a function after a duration that it computes again whenever the duration has passed. So the time
// can be extended or shortened while the timer runs. stopTimer prevents the call. A recheckTimer must be started at
// most once.
type recheckTimer struct {
	mu        sync.Mutex // guards the fields below
	timer     *time.Timer
	isStopped bool
}

// startTimer waits for the duration left(), and then calls left again. While left returns a positive duration, the
// timer waits for that duration too. When left returns 0 or less, the timer calls then in a new goroutine, once.
func (a *recheckTimer) startTimer(left func() time.Duration, then func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(left(), func() {
		if a.isDue(left) {
			then()
		}
	})
}

func (a *recheckTimer) isDue(left func() time.Duration) bool {
	wait := left()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.isStopped:
		return false
	case wait > 0:
		a.timer.Reset(wait)
		return false
	}
	a.isStopped = true
	return true
}

// stopTimer stops the timer. It returns true if the function has not been called and will not be called. It returns
// false if the call has started, or if the timer was stopped before.
func (a *recheckTimer) stopTimer() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.isStopped
	a.isStopped = true
	return !over
}
