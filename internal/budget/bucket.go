// Package budget pays for hedges: with a share of the requests, and below a rate per second.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Bucket pays for hedges with a share of the requests. It is a token bucket whose clock is the number of requests. So
// hedges stay within share × requests + burst at one request per second as at 100,000, without an estimate of the rate.
// It is safe for concurrent use.
//
// The bucket of a key or host may have a second token bucket with the same clock, the short one: a hedge takes a token from both.
// The long one saves up for the pause of a replica. The short one bounds how fast these tokens are spent in an outage.
//
// A Bucket with a [SharedReserve] takes its initial tokens from the reserve, and returns tokens that it does not need. Others start full.
type Bucket struct {
	requests atomic.Int64
	reserve  *SharedReserve // nil: there is none; never changes

	mu               sync.Mutex // guards the fields below; requests is read as the clock under it, or a clock that stepped back would pay twice
	long             tokenBucket
	short            *tokenBucket // nil: there is none
	owedTokens       int64        // initial tokens that the reserve did not have yet; with them, long holds its size at most
	overflow         int64        // from long, and not yet in the reserve
	reportedRequests int64        // requests that are reported to the reserve
	closed           bool
	meter            rateMeter
}

// NewBucket returns a full bucket that earns share tokens per request and holds burst tokens at most.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{long: newTokenBucket(share, burst)}
}

// newSharingBucket returns the bucket of a key or host. It takes its initial tokens from r.
func newSharingBucket(s Sizing, r *SharedReserve) *Bucket {
	long, short := s.burstSizes(s.Share, 0, false)
	b := NewBucket(s.Share, long)
	if s.HasShortBucket {
		p := newTokenBucket(s.shortShare(), short)
		b.short = &p
	}
	b.joinReserve(r)
	return b
}

// newRouteBucket returns the bucket of a route with a share of its own. It takes its initial tokens from r, and saves up no more than
// a bucket with the share of s.
func newRouteBucket(s Sizing, share float64, r *SharedReserve) *Bucket {
	long, _ := s.burstSizes(min(share, s.Share), 0, false)
	b := NewBucket(share, long)
	b.joinReserve(r)
	return b
}

// joinReserve replaces the tokens of a new bucket by tokens from r.
func (b *Bucket) joinReserve(r *SharedReserve) {
	b.reserve, b.owedTokens, b.long.tokens = r, b.long.size, 0
	b.refillFromReserve()
}

// refillFromReserve takes the tokens that are due, once most of the tokens are spent. The caller holds mu.
func (b *Bucket) refillFromReserve() {
	if b.owedTokens > b.long.tokens {
		n := b.reserve.takeTokens(b.owedTokens)
		b.owedTokens -= n
		b.long.tokens += n
	}
}

// Close puts all tokens back into the reserve of the bucket, which pays no more.
func (b *Bucket) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.owedTokens = true, 0
	b.earnTokens()
	b.long.size = 0
	b.overflow += b.long.earn(b.long.earnedRequests)
	b.reserve.returnTokens(b.takeUnreported())
}

// earnTokens adds the tokens for the requests so far. The caller holds mu.
func (b *Bucket) earnTokens() {
	n := b.requests.Load()
	b.overflow += b.long.earn(n)
	b.owedTokens = min(b.owedTokens, b.long.size-b.long.tokens)
	if b.short != nil {
		b.short.earn(n)
	}
}

// takeUnreported returns the overflow and the requests since the last call. The caller holds mu, and reports them to the reserve.
func (b *Bucket) takeUnreported() (overflow, requests int64) {
	overflow, requests = b.overflow, b.long.earnedRequests-b.reportedRequests
	b.overflow, b.reportedRequests = 0, b.long.earnedRequests
	return overflow, requests
}

// Earn counts a request.
func (b *Bucket) Earn() { b.requests.Add(1) }

// EarnN counts n requests at once, 1<<28 at most. A bucket that pays for bytes counts each byte as a request.
func (b *Bucket) EarnN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.Add(n)
	b.earnTokens()
}

// EarnAt is Earn for a bucket that follows the rate of its requests, which is measured from the first request on.
func (b *Bucket) EarnAt(now time.Time) {
	if b.requests.Add(1) == 1 {
		b.startMeter(now)
	}
}

// startMeter starts to measure the rate, if that has not begun.
func (b *Bucket) startMeter(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meter.startAt(now, b.requests.Load())
	if b.reserve != nil {
		b.reserve.startMeter(now)
	}
}

// Requests returns the number of requests.
func (b *Bucket) Requests() int64 { return b.requests.Load() }

// Spend takes the token for one hedge, or reports false. A bucket with share 0 never pays.
func (b *Bucket) Spend() bool { return b.SpendN(1) }

// SpendN takes n tokens, or none and reports false.
func (b *Bucket) SpendN(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.canSpend(n) {
		return false
	}
	b.addTokens(-n * tokenUnits)
	return true
}

// Refund returns the token that Spend took for a hedge that was not sent.
func (b *Bucket) Refund() { b.RefundN(1) }

// RefundN returns n of the tokens that SpendN took.
func (b *Bucket) RefundN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earnTokens()
	b.addTokens(n * tokenUnits)
	if b.earnTokens(); b.closed {
		b.reserve.returnTokens(b.takeUnreported())
	}
}

// addTokens adds tokens to the long and the short bucket. The caller holds mu.
func (b *Bucket) addTokens(tokens int64) {
	b.long.tokens += tokens
	if b.short != nil {
		b.short.tokens += tokens
	}
}

// canSpend reports whether n hedges can be paid now. The caller holds mu.
func (b *Bucket) canSpend(n int64) bool { return b.availableTokens()/tokenUnits >= n } // n*one may overflow

// Tokens returns how many hedges the bucket would pay for now, to a thousandth.
func (b *Bucket) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return math.Round(float64(b.availableTokens())/(tokenUnits/1000)) / 1000
}

// availableTokens returns the tokens that can be spent now. The caller holds mu.
func (b *Bucket) availableTokens() int64 {
	b.earnTokens()
	switch {
	case b.long.unitsPerRequest == 0:
		return 0
	case b.short == nil:
		return b.long.tokens
	default:
		return min(b.long.tokens, b.short.tokens)
	}
}

// IsHalfFull reports whether the bucket has half of the tokens that it can hold, and pays for a hedge.
func (b *Bucket) IsHalfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earnTokens()
	return b.long.unitsPerRequest > 0 && b.long.isHalfFull() && (b.short == nil || b.short.isHalfFull())
}

// AdaptSize sizes the bucket of a key, host or route for the share, the sizing, and the rate that it has measured until now. It puts the
// overflow into the reserve.
func (b *Bucket) AdaptSize(s Sizing, share float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earnTokens()
	if !b.closed {
		n := b.long.earnedRequests
		rps, known := b.meter.measure(now, n)
		long, short := s.burstSizes(min(share, s.Share), rps, known)
		b.overflow += b.long.resize(n, share, long)
		if b.short != nil {
			b.short.resize(n, s.shortShare(), short)
		}
	}
	b.reserve.returnTokens(b.takeUnreported())
	b.reserve.resize(s, share, now)
	b.refillFromReserve()
}
