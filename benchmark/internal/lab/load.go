package lab

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Load makes the calls of a run at the times that its fields determine: in a closed or in an open loop.
type Load struct {
	// Workers send one call after another: a closed loop. 0 means an open loop.
	Workers int

	// Interarrival returns the time between call i and the call before it, or the start of the load if i is 0. Only an
	// open loop uses it. It is called in the order of the calls, by one goroutine.
	Interarrival func(i int) time.Duration
}

// ConstantRate returns a function for Load.Interarrival: rate calls per second at equal intervals, the first at once.
func ConstantRate(rate float64) func(i int) time.Duration {
	due := func(i int) time.Duration { return time.Duration(float64(i) / rate * float64(time.Second)) }
	return func(i int) time.Duration { return due(i) - due(max(i-1, 0)) }
}

// Run calls the function call with the numbers 0 to calls-1, at the times of the load, and waits until all have
// returned. If ctx ends, it makes no further calls. It returns the number of calls made.
func (l Load) Run(ctx context.Context, calls int, call func(i int)) (made int) {
	var running sync.WaitGroup
	if l.Workers == 0 {
		for due := time.Now(); made < calls; made++ {
			due = due.Add(l.Interarrival(made))
			if SleepContext(ctx, time.Until(due)) != nil {
				break
			}
			i := made
			running.Go(func() { call(i) })
		}
		running.Wait()
		return made
	}
	var next atomic.Int64
	for range l.Workers {
		running.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= calls {
					return
				}
				call(i)
			}
		})
	}
	running.Wait()
	return min(int(next.Load()), calls)
}

// SleepContext sleeps for the duration d and returns nil. If ctx ends before, it returns the error of ctx at once.
func SleepContext(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
