package dnshedge

import (
	"sync"
	"sync/atomic"
	"time"
)

// A coarseClock measures the age of answers. Go's monotonic clock stands still while the machine sleeps on most
// systems. So once a second the clock compares it with the time of day. If more than a second more has passed there,
// the machine has slept or the time was set, and the difference is added to the age. The age never decreases.
type coarseClock struct {
	epoch   time.Time
	checked atomic.Int64 // when the time of day was looked at, in nanoseconds since the epoch
	slept   atomic.Int64 // nanoseconds of sleep until then

	mu        sync.Mutex
	ahead     time.Duration    // by how much the time of day was, when it was looked at
	wallClock func() time.Time // nil: time.Now
}

// sleepCheckInterval is how often the time of day is looked at, and how much more of it must have passed.
const sleepCheckInterval = time.Second

func (c *coarseClock) startClock() { c.epoch = time.Now() }

// currentTime returns the time since start.
func (c *coarseClock) currentTime() time.Duration { return c.addSleep(time.Since(c.epoch)) }

// sinceStart returns the time since start of a moment that is not long ago.
func (c *coarseClock) sinceStart(now time.Time) time.Duration {
	return c.addSleep(now.Sub(c.epoch))
}

// addSleep adds the time that the machine has slept to a time of the monotonic clock.
func (c *coarseClock) addSleep(awake time.Duration) time.Duration {
	if awake-time.Duration(c.checked.Load()) >= sleepCheckInterval {
		c.detectSleep(awake)
	}
	return awake + time.Duration(c.slept.Load())
}

func (c *coarseClock) detectSleep(awake time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if awake-time.Duration(c.checked.Load()) < sleepCheckInterval {
		return // another one has looked meanwhile
	}
	now := time.Now()
	day := now
	if c.wallClock != nil {
		day = c.wallClock()
	}
	ahead := day.Round(0).Sub(c.epoch.Round(0)) - now.Sub(c.epoch) // Round takes the monotonic clock away
	if by := ahead - c.ahead; by >= sleepCheckInterval {
		c.slept.Add(int64(by))
	}
	c.ahead = ahead
	c.checked.Store(int64(awake))
}
