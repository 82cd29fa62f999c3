package main

import (
	"slices"
	"sync"
	"time"
)

// timers measures how late timers fire while strategies run in real time. Delays,
// the server's and the clients', are as late as these. A nil timers measures nothing.
type timers struct {
	mu   sync.Mutex
	late []time.Duration // one for each millisecond or so
}

const (
	timerPeriod = time.Millisecond

	// maxTimerDelay is the maxTimerDelay of most engines: half of what an answer usually takes in the first scenario.
	maxTimerDelay = 2500 * time.Microsecond

	// timersFirst is how long timers are measured before anything runs.
	timersFirst = 250 * time.Millisecond
)

// measure measures until stop is called.
func (t *timers) measure() (stop func()) {
	if t == nil {
		return func() {}
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var late []time.Duration
		for {
			began := time.Now()
			time.Sleep(timerPeriod)
			late = append(late, time.Since(began)-timerPeriod)
			select {
			case <-over:
				t.mu.Lock()
				defer t.mu.Unlock()
				t.late = append(t.late, late...)
				return
			default:
			}
		}
	}()
	return func() { close(over); <-done }
}

// p99 returns the lateness that one timer in a hundred exceeds; 0 if none was measured.
func (t *timers) p99() time.Duration {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sorted := slices.Clone(t.late)
	slices.Sort(sorted)
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*99/100]
}
