package budget

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Ceiling bounds the hedges per second of all keys together. A nil Ceiling does not.
type Ceiling struct {
	mu  sync.Mutex // makes asking it and asking a bucket one step
	lim *rate.Limiter
}

// NewCeiling returns a Ceiling of so many hedges per second; nil, which sets no bound, if that is not positive.
func NewCeiling(perSecond float64) *Ceiling {
	if perSecond <= 0 {
		return nil
	}
	return &Ceiling{lim: rate.NewLimiter(rate.Limit(perSecond), tokens(perSecond))}
}

// Spend takes a token from the Ceiling and one from b, or none from either.
func (c *Ceiling) Spend(now time.Time, b *Bucket) bool {
	if c == nil {
		return b.Spend()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lim.TokensAt(now) >= 1 && b.Spend() && c.lim.AllowN(now, 1)
}

// GiveBack returns what Spend took.
func (c *Ceiling) GiveBack(now time.Time, b *Bucket) {
	b.GiveBack()
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lim.AllowN(now, -1)
	}
}

// HalfFull reports whether c has half of what it can hold. A nil Ceiling has.
func (c *Ceiling) HalfFull(now time.Time) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return halfFull(c.lim, now)
}
