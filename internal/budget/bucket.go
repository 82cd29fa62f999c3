// Package budget pays for hedges: with a share of the requests, and below so many per second.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Bucket pays for hedges with a share of the requests. It is a token bucket
// whose clock is the number of requests, so that
// hedges stay within share × requests + burst at one request per second as at
// 100,000, with no rate to estimate. It is safe for concurrent use.
//
// The bucket of a key or host may have a second pot, the short one, by the same
// clock: a hedge takes a token from both. The long one saves up for the pause of a
// replica; the short one bounds how fast that is spent in an outage.
//
// A bucket that is made with a [Reserve] has its start from there, and gives back what it does
// not need; others start full.
type Bucket struct {
	requests atomic.Int64
	reserve  *Reserve // nil: there is none; never changes

	mu     sync.Mutex // guards the fields below; requests is read as the clock under it, or a clock that stepped back would pay twice
	long   pot
	short  *pot  // nil: there is none
	due    int64 // of its start, which the reserve did not have yet: with it, long would hold its size at most
	over   int64 // has overflowed from long, and is not yet in the reserve
	told   int64 // requests of which the reserve knows
	closed bool
	meter  meter
}

// NewBucket returns a full bucket that gains share tokens per request and holds burst at most.
func NewBucket(share, burst float64) *Bucket {
	return &Bucket{long: newPot(share, burst)}
}

// NewSized returns the bucket of a key or host, which has its start from r.
func NewSized(s Sizing, r *Reserve) *Bucket {
	long, short := s.bursts(s.Share, 0, false)
	b := begin(s.Share, long, r)
	if s.Short {
		p := newPot(s.shortShare(), short)
		b.short = &p
	}
	return b
}

// NewRoute returns the bucket of a route with a share of its own, which has its start from r. It
// saves up no more than a bucket with the share of s would.
func NewRoute(s Sizing, share float64, r *Reserve) *Bucket {
	long, _ := s.bursts(min(share, s.Share), 0, false)
	return begin(share, long, r)
}

func begin(share, burst float64, r *Reserve) *Bucket {
	b := NewBucket(share, burst)
	b.reserve = r
	b.due, b.long.held = b.long.size, 0
	b.draw()
	return b
}

// draw takes from the reserve what is due, once most of what was there is spent. The caller holds mu.
func (b *Bucket) draw() {
	if b.due > b.long.held {
		n := b.reserve.take(b.due)
		b.due -= n
		b.long.held += n
	}
}

// Close says that the bucket is no longer needed. It puts what it has back into the reserve
// that it was made with, and pays no more.
func (b *Bucket) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.due = true, 0
	b.turn()
	b.long.size = 0
	b.over += b.long.earn(b.long.at)
	b.reserve.put(b.settle())
}

// turn lets the pots earn from the requests so far. The caller holds mu.
func (b *Bucket) turn() {
	n := b.requests.Load()
	b.over += b.long.earn(n)
	b.due = min(b.due, b.long.size-b.long.held)
	if b.short != nil {
		b.short.earn(n)
	}
}

// settle takes what the reserve has not been told. The caller holds mu.
func (b *Bucket) settle() (over, requests int64) {
	over, requests = b.over, b.long.at-b.told
	b.over, b.told = 0, b.long.at
	return over, requests
}

// Earn counts a request.
func (b *Bucket) Earn() { b.requests.Add(1) }

// EarnN counts n requests at once, 1<<28 at most: where bytes are paid for, a byte is a request and a token.
func (b *Bucket) EarnN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.Add(n)
	b.turn()
}

// EarnAt is Earn for a bucket that follows the rate of its requests, which is measured from the first one on.
func (b *Bucket) EarnAt(now time.Time) {
	if b.requests.Add(1) == 1 {
		b.start(now)
	}
}

// start begins to measure the rate, if that has not begun.
func (b *Bucket) start(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meter.start(now, b.requests.Load())
	if b.reserve != nil {
		b.reserve.start(now)
	}
}

// Requests returns how many requests were counted.
func (b *Bucket) Requests() int64 { return b.requests.Load() }

// Spend takes the token for one hedge, or reports false. A bucket with share 0
// never pays.
func (b *Bucket) Spend() bool { return b.SpendN(1) }

// SpendN takes n tokens, or none and reports false.
func (b *Bucket) SpendN(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held()/one < n { // n*one may overflow
		return false
	}
	b.add(-n * one)
	return true
}

// GiveBack returns the token that Spend took for a hedge that was not sent.
func (b *Bucket) GiveBack() { b.GiveBackN(1) }

// GiveBackN returns n of the tokens that SpendN took.
func (b *Bucket) GiveBackN(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn()
	b.add(n * one)
	if b.turn(); b.closed {
		b.reserve.put(b.settle())
	}
}

// add adds tokens to the pots. The caller holds mu.
func (b *Bucket) add(tokens int64) {
	b.long.held += tokens
	if b.short != nil {
		b.short.held += tokens
	}
}

// Pays reports whether the bucket would pay for a hedge now.
func (b *Bucket) Pays() bool { return b.PaysN(1) }

// PaysN reports whether the bucket would pay n tokens now.
func (b *Bucket) PaysN(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held() >= n*one
}

// Tokens returns how many hedges the bucket would pay for now, to a thousandth.
func (b *Bucket) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return math.Round(float64(b.held())/(one/1000)) / 1000
}

// held returns what could be spent now. The caller holds mu.
func (b *Bucket) held() int64 {
	b.turn()
	switch {
	case b.long.rate == 0:
		return 0
	case b.short == nil:
		return b.long.held
	default:
		return min(b.long.held, b.short.held)
	}
}

// HalfFull reports whether the bucket has half of what it can hold, and pays for a hedge.
func (b *Bucket) HalfFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn()
	return b.long.rate > 0 && b.long.halfFull() && (b.short == nil || b.short.halfFull())
}

// Follow sizes the bucket of a key, host or route for the share, the
// sizing, and the rate that it has measured until now, and puts what has overflowed into the reserve.
func (b *Bucket) Follow(s Sizing, share float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn()
	if !b.closed {
		n := b.long.at
		rps, known := b.meter.measure(now, n)
		long, short := s.bursts(min(share, s.Share), rps, known)
		b.over += b.long.set(n, share, long)
		if b.short != nil {
			b.short.set(n, s.shortShare(), short)
		}
	}
	b.reserve.put(b.settle())
	b.reserve.follow(s, share, now)
	b.draw()
}
