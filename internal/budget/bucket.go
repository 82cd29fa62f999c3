// Package budget implements the hedge budget: token buckets that a share of the requests refills, and a limit of hedges per second.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Bucket is a token bucket that pays for hedges. Requests refill it, rather than time. Therefore the number of hedges is at
// most share × requests + burst at any request rate. It is safe for concurrent use.
//
// The Bucket of a key or host may consist of a long and a short token bucket. A hedge takes tokens from both. The long bucket
// holds enough tokens for the time in which a replica pauses. The short bucket limits how fast these tokens can be spent in an
// outage.
//
// A Bucket with a [SharedReserve] takes its initial tokens from the reserve, and returns surplus tokens to it. A Bucket without
// a reserve starts full.
type Bucket struct {
	requests atomic.Int64   // number of requests that were counted
	reserve  *SharedReserve // source of the initial tokens; nil: none; never changes

	// mu guards the fields that follow. It is held while requests is converted to tokens, so that no request deposits tokens
	// twice.
	mu    sync.Mutex
	long  tokenBucket  // holds the burst
	short *tokenBucket // nil: there is only the long bucket
	// owedTokens is the number of billionths of initial tokens that the reserve has not supplied yet. It is at most the free
	// space of long.
	owedTokens int64
	// overflow is the number of billionths of tokens that did not fit into long, and that were not returned to the reserve yet.
	overflow         int64
	reportedRequests int64     // number of requests that were reported to the reserve
	closed           bool      // Close was called
	meter            rateMeter // measures the request rate
}

// NewBucket returns a full Bucket without a reserve. Each request deposits share tokens, and the bucket holds at most burst
// tokens.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{long: newTokenBucket(share, burst)}
}

// newSharingBucket returns a bucket for a key or a host, whose size follows from s. Its initial tokens come from the reserve
// r.
func newSharingBucket(s Sizing, r *SharedReserve) *Bucket {
	long, short := s.burstSizes(s.Share, 0, false)
	b := NewBucket(s.Share, long)
	if s.HasShortBucket {
		p := newTokenBucket(s.shortShare(), short)
		b.short = &p
	}
	b.attachReserve(r)
	return b
}

// newRouteBucket returns a bucket that limits the hedges of a route to the given share, in hedges per request. Its initial
// tokens come from the reserve r. If share exceeds s.Share, the burst is that of a bucket with s.Share.
func newRouteBucket(s Sizing, share float64, r *SharedReserve) *Bucket {
	long, _ := s.burstSizes(min(share, s.Share), 0, false)
	b := NewBucket(share, long)
	b.attachReserve(r)
	return b
}

// attachReserve makes r the reserve of a new bucket, and replaces the bucket's content by tokens from r. If r has too few
// tokens, the bucket may get more later, see refillFromReserve.
func (b *Bucket) attachReserve(r *SharedReserve) {
	b.reserve, b.owedTokens, b.long.tokens = r, b.long.size, 0
	b.refillFromReserve()
}

// refillFromReserve takes initial tokens from the reserve, up to the number owedTokens that the reserve has not supplied
// yet. It does nothing if the long bucket already holds at least owedTokens tokens. The caller must hold mu.
func (b *Bucket) refillFromReserve() {
	if b.owedTokens > b.long.tokens {
		n := b.reserve.takeTokens(b.owedTokens)
		b.owedTokens -= n
		b.long.tokens += n
	}
}

// Close disables the bucket when its key or route is no longer needed. All its tokens return to the reserve, and Spend
// returns false from then on. The bucket must have a reserve.
func (b *Bucket) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.owedTokens = true, 0
	b.depositTokens()
	b.long.size = 0
	b.overflow += b.long.deposit(b.long.depositedRequests)
	b.reserve.returnTokens(b.takeUnreported())
}

// depositTokens deposits the tokens for the requests that were counted since its last call. The caller must hold mu.
func (b *Bucket) depositTokens() {
	n := b.requests.Load()
	b.overflow += b.long.deposit(n)
	b.owedTokens = min(b.owedTokens, b.long.size-b.long.tokens)
	if b.short != nil {
		b.short.deposit(n)
	}
}

// takeUnreported returns the overflow, in billionths of a token, and the number of requests that the bucket has not reported
// to its reserve yet. It also marks them as reported. The caller must hold mu, and must pass both results to
// SharedReserve.returnTokens.
func (b *Bucket) takeUnreported() (overflow, requests int64) {
	overflow, requests = b.overflow, b.long.depositedRequests-b.reportedRequests
	b.overflow, b.reportedRequests = 0, b.long.depositedRequests
	return overflow, requests
}

// Deposit deposits the tokens for one request. It only counts the request: the tokens are added when the bucket is used
// next.
func (b *Bucket) Deposit() { b.requests.Add(1) }

// DepositN deposits the tokens for n requests at once, where n must be at most 1<<28. In a budget of bytes, each byte counts as a
// request.
func (b *Bucket) DepositN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.Add(n)
	b.depositTokens()
}

// DepositAt deposits the tokens for one request, made at the time now, in a bucket that adapts its size to the request rate.
// The first call starts the measurement of the rate.
func (b *Bucket) DepositAt(now time.Time) {
	if b.requests.Add(1) == 1 {
		b.startMeter(now)
	}
}

// startMeter starts to measure the request rates of the bucket and of its reserve, by which AdaptSize sets their sizes. It
// has no effect on a measurement that has started already.
func (b *Bucket) startMeter(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meter.startAt(now, b.requests.Load())
	if b.reserve != nil {
		b.reserve.startMeter(now)
	}
}

// Requests returns the number of requests that were counted by Deposit, DepositN and DepositAt.
func (b *Bucket) Requests() int64 { return b.requests.Load() }

// Spend takes one token. It returns false if the bucket holds less than one token, or if its share is 0.
func (b *Bucket) Spend() bool { return b.SpendN(1) }

// SpendN takes n tokens. If the bucket holds fewer tokens, SpendN takes none and returns false.
func (b *Bucket) SpendN(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.canSpend(n) {
		return false
	}
	b.addTokens(-n * unitsPerToken)
	return true
}

// Refund puts back one token that Spend took.
func (b *Bucket) Refund() { b.RefundN(1) }

// RefundN puts back n tokens that SpendN took. If the bucket was closed in the meantime, the tokens go to its reserve.
func (b *Bucket) RefundN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.depositTokens()
	b.addTokens(n * unitsPerToken)
	if b.depositTokens(); b.closed {
		b.reserve.returnTokens(b.takeUnreported())
	}
}

// addTokens adds the given number of billionths of a token to the long and the short bucket. A negative number removes tokens.
// The caller must hold mu.
func (b *Bucket) addTokens(tokens int64) {
	b.long.tokens += tokens
	if b.short != nil {
		b.short.tokens += tokens
	}
}

// canSpend reports whether at least n tokens can be spent. The caller must hold mu.
func (b *Bucket) canSpend(n int64) bool { return b.availableTokens()/unitsPerToken >= n } // n*unitsPerToken may overflow

// Tokens returns the number of tokens that can be spent now, rounded to a thousandth of a token.
func (b *Bucket) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return math.Round(float64(b.availableTokens())/(unitsPerToken/1000)) / 1000
}

// availableTokens returns the number of billionths of a token that can be spent now: the smaller content of the long and the
// short bucket. It returns 0 if the share is 0. The caller must hold mu.
func (b *Bucket) availableTokens() int64 {
	b.depositTokens()
	switch {
	case b.long.unitsPerRequest == 0:
		return 0
	case b.short == nil:
		return b.long.tokens
	default:
		return min(b.long.tokens, b.short.tokens)
	}
}

// IsHalfFull reports whether the bucket holds at least half of its burst, and at least one token. It is false if the share is
// 0.
func (b *Bucket) IsHalfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.depositTokens()
	return b.long.unitsPerRequest > 0 && b.long.isHalfFull() && (b.short == nil || b.short.isHalfFull())
}

// AdaptSize changes the size of the bucket according to its measured request rate and the settings s. The argument share is
// the bucket's share, in hedges per request.
//
// AdaptSize also returns surplus tokens to the reserve, and resizes the reserve. The bucket must have a reserve.
func (b *Bucket) AdaptSize(s Sizing, share float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.depositTokens()
	if !b.closed {
		n := b.long.depositedRequests
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
