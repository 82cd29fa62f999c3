package main

import (
	"slices"
	"sync"
	"time"
)

// A timerMonitor measures how late timers fire on this machine while strategies run in real time. The simulated delays
// of servers and the hedge delays of clients are as late as these timers. A nil *timerMonitor measures nothing.
type timerMonitor struct {
	mu     sync.Mutex
	delays []time.Duration // one for each millisecond or so
}

const (
	timerPeriod = time.Millisecond

	// maxTimerDelay is the maxTimerDelay of most engines: half of what an answer usually takes in the first scenario.
	maxTimerDelay = 2500 * time.Microsecond

	// initialTimerTime is how long timers are measured before anything runs.
	initialTimerTime = 250 * time.Millisecond
)

// startMeasuring measures the lateness of timers about once per millisecond, until stop is called.
func (t *timerMonitor) startMeasuring() (stop func()) {
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
				t.delays = append(t.delays, late...)
				return
			default:
			}
		}
	}()
	return func() { close(over); <-done }
}

func (t *timerMonitor) p99Delay() time.Duration {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sorted := slices.Clone(t.delays)
	slices.Sort(sorted)
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*99/100]
}
