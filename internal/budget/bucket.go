// Package budget implements the hedge budget: token buckets that a share of the requests refills, and a limit of hedges per second.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Bucket is a token bucket that pays for hedges. Requests refill it, not time. So the number of hedges is at most share × requests +
// burst at any request rate, and the rate need not be known. It is safe for concurrent use.
//
// The bucket of a key or host may consist of two token buckets, long and short. A hedge takes its tokens from both. The long bucket holds
// tokens for the time in which a replica pauses. The short bucket limits how fast these tokens are spent in an outage.
//
// A Bucket with a [SharedReserve] takes its initial tokens from the reserve, and returns surplus tokens. Other buckets start full.
type Bucket struct {
	requests atomic.Int64
	reserve  *SharedReserve // nil: there is none; never changes

	mu               sync.Mutex // guards the fields below; held while requests is read to earn tokens, so that no request earns twice
	long             tokenBucket
	short            *tokenBucket // nil: there is none
	owedTokens       int64        // initial tokens that the reserve has not supplied yet; at most the free space of long
	overflow         int64        // tokens that did not fit into long and were not returned to the reserve yet
	reportedRequests int64        // number of requests that were reported to the reserve
	closed           bool
	meter            rateMeter
}

// NewBucket returns a full bucket that earns share tokens per request and holds at most burst tokens.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{long: newTokenBucket(share, burst)}
}

// newSharingBucket returns a bucket of a key or host, with initial tokens from r.
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

// newRouteBucket returns the bucket of a route with a share of its own, with initial tokens from r. Its burst is at most that of a
// bucket with the share of s.
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

// refillFromReserve takes owed tokens from the reserve when the bucket holds fewer tokens than it is owed. The caller holds mu.
func (b *Bucket) refillFromReserve() {
	if b.owedTokens > b.long.tokens {
		n := b.reserve.takeTokens(b.owedTokens)
		b.owedTokens -= n
		b.long.tokens += n
	}
}

// Close returns all tokens to the reserve, which the bucket must have. After that, Spend reports false.
func (b *Bucket) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.owedTokens = true, 0
	b.earnTokens()
	b.long.size = 0
	b.overflow += b.long.earn(b.long.earnedRequests)
	b.reserve.returnTokens(b.takeUnreported())
}

// earnTokens adds the tokens for the requests since its last call. The caller holds mu.
func (b *Bucket) earnTokens() {
	n := b.requests.Load()
	b.overflow += b.long.earn(n)
	b.owedTokens = min(b.owedTokens, b.long.size-b.long.tokens)
	if b.short != nil {
		b.short.earn(n)
	}
}

// takeUnreported returns the overflow and the number of requests since its last call. The caller holds mu, and passes both to the
// reserve.
func (b *Bucket) takeUnreported() (overflow, requests int64) {
	overflow, requests = b.overflow, b.long.earnedRequests-b.reportedRequests
	b.overflow, b.reportedRequests = 0, b.long.earnedRequests
	return overflow, requests
}

// Earn counts a request, which earns the share of a token.
func (b *Bucket) Earn() { b.requests.Add(1) }

// EarnN counts n requests at once; n is at most 1<<28. In a budget of bytes, each byte counts as a request.
func (b *Bucket) EarnN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.Add(n)
	b.earnTokens()
}

// EarnAt does the same as Earn for a bucket that adapts its size. The first request starts the measurement of the request rate.
func (b *Bucket) EarnAt(now time.Time) {
	if b.requests.Add(1) == 1 {
		b.startMeter(now)
	}
}

// startMeter starts the rate meters of the bucket and of its reserve, unless they run already.
func (b *Bucket) startMeter(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meter.startAt(now, b.requests.Load())
	if b.reserve != nil {
		b.reserve.startMeter(now)
	}
}

// Requests returns the number of counted requests.
func (b *Bucket) Requests() int64 { return b.requests.Load() }

// Spend takes one token. It reports false if there is none. A bucket with share 0 never pays.
func (b *Bucket) Spend() bool { return b.SpendN(1) }

// SpendN takes n tokens. If there are fewer, it takes none and reports false.
func (b *Bucket) SpendN(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.canSpend(n) {
		return false
	}
	b.addTokens(-n * tokenUnits)
	return true
}

// Refund puts back the token that Spend took for a hedge that was not sent.
func (b *Bucket) Refund() { b.RefundN(1) }

// RefundN puts back n tokens that SpendN took.
func (b *Bucket) RefundN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earnTokens()
	b.addTokens(n * tokenUnits)
	if b.earnTokens(); b.closed {
		b.reserve.returnTokens(b.takeUnreported())
	}
}

// addTokens adds tokens, in units, to the long and the short bucket. A negative number removes tokens. The caller holds mu.
func (b *Bucket) addTokens(tokens int64) {
	b.long.tokens += tokens
	if b.short != nil {
		b.short.tokens += tokens
	}
}

// canSpend reports whether the bucket holds n tokens. The caller holds mu.
func (b *Bucket) canSpend(n int64) bool { return b.availableTokens()/tokenUnits >= n } // n*tokenUnits may overflow

// Tokens returns the number of tokens that can be spent now, rounded to a thousandth.
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

// IsHalfFull reports whether the bucket holds at least half of its burst, and at least one token.
func (b *Bucket) IsHalfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earnTokens()
	return b.long.unitsPerRequest > 0 && b.long.isHalfFull() && (b.short == nil || b.short.isHalfFull())
}

// AdaptSize resizes the bucket of a key, host or route for the share, the sizing and the measured request rate. It returns the
// overflow to the reserve, and resizes the reserve. The bucket must have a reserve.
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
