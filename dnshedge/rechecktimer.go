package dnshedge

import (
	"sync"
	"time"
)

// alarm calls a function when it is due, unless it is stopped before. It is used once.
type recheckTimer struct {
	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	isOver bool
}

// begin starts the alarm. It is due when left returns 0, and calls then; while left returns a time, left is called again after that.
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

// stopTimer reports whether the function is not called.
func (a *recheckTimer) stopTimer() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.isOver
	a.isOver = true
	return !over
}
