package engine

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A Bucket pays for hedges with a share of the requests. It is a rate.Limiter
// whose clock is the number of requests: each advances it by a second, so that
// hedges stay within share × requests + burst at one request per second as at
// 100,000, with no rate to estimate. It starts full and is safe for concurrent
// use.
type Bucket struct {
	requests atomic.Int64

	mu    sync.Mutex // a clock that stepped back would pay twice, so it is read under mu
	lim   *rate.Limiter
	share float64
}

// NewBucket returns a bucket that gains share tokens per request and holds burst at most.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{lim: rate.NewLimiter(rate.Limit(share), tokens(burst)), share: share}
}

func tokens(burst float64) int { return int(min(max(math.Ceil(burst), 1), math.MaxInt32)) }

// Earn counts a request.
func (b *Bucket) Earn() { b.requests.Add(1) }

// Spend takes the token for one hedge, or reports false. A bucket with share 0
// never pays.
func (b *Bucket) Spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.share > 0 && b.lim.AllowN(b.clock(), 1)
}

// Tokens returns how many hedges the bucket would pay for now.
func (b *Bucket) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.share <= 0 {
		return 0
	}
	return b.lim.TokensAt(b.clock())
}

// halfFull reports whether the bucket has half of what it can hold, and pays for a hedge.
func (b *Bucket) halfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.share > 0 && halfFull(b.lim, b.clock())
}

func halfFull(lim *rate.Limiter, now time.Time) bool {
	return lim.TokensAt(now) >= max(1, float64(lim.Burst())/2)
}

// Set changes the share and the burst. What was earned stays, up to the burst.
func (b *Bucket) Set(share, burst float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	if b.share != share {
		b.share = share
		b.lim.SetLimitAt(now, rate.Limit(share))
	}
	if n := tokens(burst); n != b.lim.Burst() {
		b.lim.SetBurstAt(now, n)
	}
}

func (b *Bucket) clock() time.Time { return time.Unix(b.requests.Load(), 0) }

// A ceiling bounds the hedges per second of all keys together. A nil ceiling does not.
type ceiling struct {
	mu  sync.Mutex // makes asking it and asking a bucket one step
	lim *rate.Limiter
}

func newCeiling(perSecond float64) *ceiling {
	if perSecond <= 0 {
		return nil
	}
	return &ceiling{lim: rate.NewLimiter(rate.Limit(perSecond), tokens(perSecond))}
}

// spend takes a token from the ceiling and one from b, or none from either.
func (c *ceiling) spend(now time.Time, b *Bucket) bool {
	if c == nil {
		return b.Spend()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lim.TokensAt(now) >= 1 && b.Spend() && c.lim.AllowN(now, 1)
}

// halfFull reports whether c has half of what it can hold. A nil ceiling has.
func (c *ceiling) halfFull(now time.Time) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return halfFull(c.lim, now)
}
