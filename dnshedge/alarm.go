package dnshedge

import (
	"sync"
	"time"
)

// alarm calls a function when it is due, unless it is stopped before. It is used once.
type alarm struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	over  bool
}

// begin starts the alarm. It is due when left returns 0, and calls then; while left returns a time, left is called again after that.
func (a *alarm) begin(left func() time.Duration, then func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(left(), func() {
		if a.due(left) {
			then()
		}
	})
}

func (a *alarm) due(left func() time.Duration) bool {
	wait := left()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
		return false
	case wait > 0:
		a.timer.Reset(wait)
		return false
	}
	a.over = true
	return true
}

// stop reports whether the function is not called.
func (a *alarm) stop() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.Stop()
	over := a.over
	a.over = true
	return !over
}
