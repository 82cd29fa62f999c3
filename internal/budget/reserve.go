package budget

import (
	"sync"
	"time"
)

// Reserves are the reserves of all buckets of an engine. The owner guards them.
type Reserves struct {
	keyReserve    *SharedReserve             // for the buckets of keys and hosts
	routeReserves map[float64]*SharedReserve // for the buckets of routes, by their share
}

// NewReserves returns full Reserves.
func NewReserves(s Sizing) Reserves {
	return Reserves{keyReserve: newSharedReserve(s, s.Share), routeReserves: make(map[float64]*SharedReserve)}
}

// routeReserve returns the reserve for the buckets of all routes with the given share, and makes it if it is missing.
func (r *Reserves) routeReserve(s Sizing, share float64) *SharedReserve {
	if r.routeReserves[share] == nil {
		r.routeReserves[share] = newSharedReserve(s, share)
	}
	return r.routeReserves[share]
}

// A SharedReserve supplies new buckets with their initial tokens. Without it, each new bucket would add a burst. With it, any number
// of buckets together spends at most the share of all their requests and one burst. A reserve starts with one burst, and grows at most
// to a burst at the request rate of all its buckets.
//
// A new bucket gets at most half of the tokens of the reserve at a time. A closed bucket returns its tokens, and a full bucket the
// tokens that overflow. A SharedReserve is safe for concurrent use. Buckets use it when they are made, resized and closed, but not for
// each call.
type SharedReserve struct {
	mu           sync.Mutex // guards the fields below; locked after a bucket's
	tokens       int64
	size         int64
	issuedTokens int64 // tokens that were added without a request
	requests     int64 // number of requests that the buckets have reported
	meter        rateMeter
}

// newSharedReserve returns a full SharedReserve for buckets with the given share.
func newSharedReserve(s Sizing, share float64) *SharedReserve {
	long, _ := s.burstSizes(min(share, s.Share), 0, false)
	n := unitsForBurst(long)
	return &SharedReserve{tokens: n, size: n, issuedTokens: n}
}

// startMeter starts to measure the request rate, unless it is measured already.
func (r *SharedReserve) startMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.startAt(now, 0)
}

// takeTokens removes up to n tokens, but at most half of the tokens, and returns their number in units.
func (r *SharedReserve) takeTokens(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.tokens/2)
	r.tokens -= n
	return n
}

// returnTokens adds tokens that a bucket returns, and the number of requests since the last report of the bucket.
func (r *SharedReserve) returnTokens(tokens, requests int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests += requests
	r.tokens = min(r.tokens+tokens, r.size)
}

// resize sets the size to a burst at the request rate of all buckets. The first time that it grows to a size, it adds the tokens.
func (r *SharedReserve) resize(s Sizing, share float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rps, known := r.meter.measure(now, r.requests)
	known = known && now.Sub(r.meter[0].at) >= minMeasureTime // a shorter measurement is too inaccurate
	long, _ := s.burstSizes(min(share, s.Share), rps, known)
	r.size = unitsForBurst(long)
	if more := r.size - r.issuedTokens; more > 0 {
		r.tokens += more
		r.issuedTokens += more
	}
	r.tokens = min(r.tokens, r.size)
}
