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

	// tooLate is the lateness, at the 99th percentile, from which figures say more
	// about the machine than about the strategies: half of what an answer usually
	// takes in the scenario seed.
	tooLate = 2500 * time.Microsecond

	// tooLateToResolve is the same for recursor, whose answers take ten times as long.
	tooLateToResolve = 5 * time.Millisecond

	// tooLateToFail is the same for faults, which is about who answers, and whether the last answer is a
	// tenth of a second late: a quarter of that.
	tooLateToFail = 25 * time.Millisecond

	// timersFirst is how long timers are measured before anything runs.
	timersFirst = 250 * time.Millisecond
)

// watch measures until stop is called.
func (t *timers) watch() (stop func()) {
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
