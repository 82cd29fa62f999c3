package budget

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Ceiling bounds the hedges per second of all keys together. A nil Ceiling does not.
type Ceiling struct {
	mu   sync.Mutex // makes asking it and asking a bucket one step; guards last
	lim  *rate.Limiter
	last time.Time // when it was asked latest
}

// at returns the time to ask lim for: who is a little late would have it pay for that time twice. The caller holds mu.
func (c *Ceiling) at(now time.Time) time.Time {
	if late := c.last.Sub(now); late <= 0 || late >= time.Second { // or the clock was set back
		c.last = now
	}
	return c.last
}

// NewCeiling returns a Ceiling of so many hedges per second; nil, which sets no bound, if that is not positive.
func NewCeiling(perSecond float64) *Ceiling {
	if perSecond <= 0 {
		return nil
	}
	return &Ceiling{lim: rate.NewLimiter(rate.Limit(min(perSecond, math.MaxFloat64)), int(sizeOf(perSecond)/one))} // rate.Inf is not +Inf
}

// Spend takes a token from the Ceiling, which counts hedges, and n from b, or none from either.
func (c *Ceiling) Spend(now time.Time, b *Bucket, n int64) bool {
	if c == nil {
		return b.SpendN(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.at(now)
	return c.lim.TokensAt(now) >= 1 && b.SpendN(n) && c.lim.AllowN(now, 1)
}

// GiveBack returns what Spend took.
func (c *Ceiling) GiveBack(now time.Time, b *Bucket, n int64) {
	b.GiveBackN(n)
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lim.AllowN(c.at(now), -1)
	}
}

// HalfFull reports whether c has half of what it can hold. A nil Ceiling has.
func (c *Ceiling) HalfFull(now time.Time) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lim.TokensAt(now) >= max(1, float64(c.lim.Burst())/2)
}
