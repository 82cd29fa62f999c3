package main

import (
	"sync"
	"time"
)

// A stopwatch measures the time that a contender runs. It stands still while other contenders have their turn. Its zero
// value stands still at 0.
type stopwatch struct {
	mu    sync.Mutex
	ran   time.Duration
	since time.Time // zero: stopped
}

func (w *stopwatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

func (w *stopwatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran += time.Since(w.since)
	w.since = time.Time{}
}

func (w *stopwatch) read() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.ran
	}
	return w.ran + time.Since(w.since)
}
