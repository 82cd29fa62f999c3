package dnshedge

import (
	"sync"
	"sync/atomic"
	"time"
)

// A sleepAwareClock measures the time since the first use of a cache, including the time for which the machine has
// slept. It is used for the age of cached answers. It is safe for concurrent use.
type sleepAwareClock struct {
	epoch   time.Time
	checked atomic.Int64 // time of the last comparison with the wall clock, in nanoseconds since the epoch
	slept   atomic.Int64 // total sleep until then, in nanoseconds

	mu        sync.Mutex
	ahead     time.Duration    // by how much the wall clock was ahead of the monotonic clock at the last comparison
	wallClock func() time.Time // nil: time.Now
}

// sleepCheckInterval is the time between two comparisons with the wall clock, and the shortest sleep that they detect.
const sleepCheckInterval = time.Second

// timeSinceEpoch returns the time from the start of the clock (its epoch) to now, including the time for which the
// machine has slept. It detects sleep at most once a second. now must have a monotonic clock reading.
func (c *sleepAwareClock) timeSinceEpoch(now time.Time) time.Duration {
	awake := now.Sub(c.epoch)
	if awake-time.Duration(c.checked.Load()) >= sleepCheckInterval {
		c.detectSleep(awake)
	}
	return awake + time.Duration(c.slept.Load())
}

func (c *sleepAwareClock) detectSleep(awake time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if awake-time.Duration(c.checked.Load()) < sleepCheckInterval {
		return // another goroutine has compared the clocks
	}
	now := time.Now()
	day := now
	if c.wallClock != nil {
		day = c.wallClock()
	}
	// On most systems the monotonic clock stops during sleep. A gain of the wall clock means sleep, or that it was set.
	ahead := day.Round(0).Sub(c.epoch.Round(0)) - now.Sub(c.epoch) // Round removes the monotonic reading
	if by := ahead - c.ahead; by >= sleepCheckInterval {
		c.slept.Add(int64(by))
	}
	c.ahead = ahead
	c.checked.Store(int64(awake))
}
