package dnshedge

import (
	"sync"
	"time"
)

// recheckTimer calls a function when a time has passed, unless it is stopped before. It is used once.
type recheckTimer struct {
	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	isOver bool
}

// startTimer starts the timer. When left returns 0, the timer calls then. While left returns a time, left is called
// again after that time.
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
	case a.isOver:
		return false
	case wait > 0:
		a.timer.Reset(wait)
		return false
	}
	a.isOver = true
	return true
}

// stopTimer stops the timer. It reports whether the function is not called.
func (a *recheckTimer) stopTimer() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.isOver
	a.isOver = true
	return !over
}
