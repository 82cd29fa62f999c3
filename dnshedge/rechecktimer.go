package dnshedge

import (
	"sync"
	"time"
)

// recheckTimer calls a function after a time that may be extended while it runs. stopTimer prevents the call. A
// recheckTimer is used once.
type recheckTimer struct {
	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	isOver bool
}

// startTimer starts the timer with the duration left(). When that has passed, it calls left again: if the result is
// positive, the timer runs for that time again. Otherwise it calls then, in a goroutine of its own.
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

// stopTimer stops the timer. It reports whether the timer was stopped before it called the function.
func (a *recheckTimer) stopTimer() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.isOver
	a.isOver = true
	return !over
}
