// Package budget pays for hedges: with a share of the requests, and below so many per second.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	minMeasured = time.Second // after which a rate is known, or after so many requests:
	minCounted  = 20          // in minSpan at least
	minSpan     = 10 * time.Millisecond
	everyMark   = 10 * time.Second // a rate is measured over this time at least, and over twice this time at most while there are calls
)

// A Bucket pays for hedges with a share of the requests. It is a rate.Limiter
// whose clock is the number of requests: each advances it by a second, so that
// hedges stay within share × requests + burst at one request per second as at
// 100,000, with no rate to estimate. It starts full and is safe for concurrent
// use.
//
// The bucket of a key or host may have a second limiter, the short one, by the same
// clock: a hedge takes a token from both. The long one saves up for the pause of a
// replica; the short one bounds how fast that is spent in an outage.
type Bucket struct {
	requests atomic.Int64

	mu    sync.Mutex // guards the fields below; requests is read as the clock under it, or a clock that stepped back would pay twice
	lim   *rate.Limiter
	short *rate.Limiter // nil: there is none
	share float64
	slot  int64   // for which it was emptied last, see [Bucket.Empty]
	marks [2]mark // between which and now the rate is measured, the older one first
}

// mark is how many requests there were at a time.
type mark struct {
	at       time.Time
	requests int64
}

// NewBucket returns a bucket that gains share tokens per request and holds burst at most.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{lim: rate.NewLimiter(rate.Limit(share), tokens(burst)), share: share}
}

// NewSized returns the bucket of a key or host.
func NewSized(s Sizing) *Bucket {
	long, short := s.bursts(s.Share, 0, false)
	b := NewBucket(s.Share, long)
	if s.Short {
		b.short = rate.NewLimiter(s.shortLimit(), tokens(short))
	}
	return b
}

// NewRoute returns the bucket of a route with a share of its own. It saves up
// no more than a bucket with the share of s would.
func NewRoute(s Sizing, share float64) *Bucket {
	long, _ := s.bursts(min(share, s.Share), 0, false)
	return NewBucket(share, long)
}

func tokens(burst float64) int { return int(min(max(math.Ceil(burst), 1), math.MaxInt32)) }

// Earn counts a request.
func (b *Bucket) Earn() { b.requests.Add(1) }

// EarnAt is Earn for a bucket that follows the rate of its requests, which is measured from the first one on.
func (b *Bucket) EarnAt(now time.Time) {
	if b.requests.Add(1) == 1 {
		b.start(now)
	}
}

// Requests returns how many requests were counted.
func (b *Bucket) Requests() int64 { return b.requests.Load() }

// Spend takes the token for one hedge, or reports false. A bucket with share 0
// never pays.
func (b *Bucket) Spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	if b.tokens(now) < 1 {
		return false
	}
	if b.short != nil {
		b.short.AllowN(now, 1)
	}
	return b.lim.AllowN(now, 1)
}

// GiveBack returns the token that Spend took for a hedge that was not sent.
func (b *Bucket) GiveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	if b.short != nil {
		b.short.AllowN(now, -1)
	}
	b.lim.AllowN(now, -1)
}

// Pays reports whether the bucket would pay for a hedge now.
func (b *Bucket) Pays() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens(b.clock()) >= 1
}

// Tokens returns how many hedges the bucket would pay for now, to a thousandth: what is
// earned in tenths and hundredths is no exact float64.
func (b *Bucket) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return math.Round(b.tokens(b.clock())*1000) / 1000
}

// tokens returns the exact number of hedges. The caller holds mu.
func (b *Bucket) tokens(now time.Time) float64 {
	switch {
	case b.share <= 0:
		return 0
	case b.short == nil:
		return b.lim.TokensAt(now)
	default:
		return min(b.lim.TokensAt(now), b.short.TokensAt(now))
	}
}

// Empty takes all tokens, once for each slot of an audit.
func (b *Bucket) Empty(slot int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.slot == slot {
		return
	}
	b.slot = slot
	now := b.clock()
	for _, lim := range [...]*rate.Limiter{b.lim, b.short} {
		if lim != nil {
			lim.AllowN(now, int(lim.TokensAt(now)))
		}
	}
}

// HalfFull reports whether the bucket has half of what it can hold, and pays for a hedge.
func (b *Bucket) HalfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	return b.share > 0 && halfFull(b.lim, now) && (b.short == nil || halfFull(b.short, now))
}

func halfFull(lim *rate.Limiter, now time.Time) bool {
	return lim.TokensAt(now) >= max(1, float64(lim.Burst())/2)
}

// set changes a limiter. What was earned stays, up to the burst.
func set(lim *rate.Limiter, now time.Time, share rate.Limit, burst float64) {
	if share != lim.Limit() {
		lim.SetLimitAt(now, share)
	}
	if n := tokens(burst); n != lim.Burst() {
		lim.SetBurstAt(now, n)
	}
}

// Follow sizes the bucket of a key, host or route for the share, the
// sizing, and the rate that it has measured until now.
func (b *Bucket) Follow(s Sizing, share float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rps, known := b.measure(now)
	long, short := s.bursts(min(share, s.Share), rps, known)
	clock := b.clock()
	b.share = share
	set(b.lim, clock, rate.Limit(share), long)
	if b.short != nil {
		set(b.short, clock, s.shortLimit(), short)
	}
}

// start begins to measure the rate, if that has not begun.
func (b *Bucket) start(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.marks[0].at.IsZero() {
		b.marks[0] = mark{now, b.requests.Load()}
		b.marks[1] = b.marks[0]
	}
}

// measure returns the requests per second of the last 10 to 20 s, or of as long as
// there were any. It reports false until a second, or twenty requests, tell it. The caller holds mu.
func (b *Bucket) measure(now time.Time) (rps float64, known bool) {
	n := b.requests.Load()
	if b.marks[0].at.IsZero() || now.Before(b.marks[1].at) { // or the clock was set back
		b.marks[0] = mark{now, n}
		b.marks[1] = b.marks[0]
	}
	if now.Sub(b.marks[1].at) >= everyMark {
		b.marks[0], b.marks[1] = b.marks[1], mark{now, n}
	}
	age, counted := now.Sub(b.marks[0].at), n-b.marks[0].requests
	if age < minMeasured && (age < minSpan || counted < minCounted) {
		return 0, false
	}
	return float64(counted) / age.Seconds(), true
}

func (b *Bucket) clock() time.Time { return time.Unix(b.requests.Load(), 0) }
