package budget

import (
	"sync"
	"time"
)

// Reserves are the reserves of an engine's buckets. Their owner guards them.
type Reserves struct {
	keyReserve    *SharedReserve
	routeReserves map[float64]*SharedReserve // by the share of the routes
}

// NewReserves returns full Reserves.
func NewReserves(s Sizing) Reserves {
	return Reserves{keyReserve: newSharedReserve(s, s.Share), routeReserves: make(map[float64]*SharedReserve)}
}

// routeReserve returns the reserve of all routes with the given share.
func (r *Reserves) routeReserve(s Sizing, share float64) *SharedReserve {
	if r.routeReserves[share] == nil {
		r.routeReserves[share] = newSharedReserve(s, share)
	}
	return r.routeReserves[share]
}

// A SharedReserve holds the initial tokens of buckets, so that any number of buckets together pays for the share of all their requests
// and one burst. It starts with a burst. It has never been given, and never holds, more than a burst at the rate of all its buckets.
//
// A new bucket takes its initial tokens from the reserve: at most half of the tokens there at a time. A bucket that is closed puts its
// tokens back, and a full one the tokens that overflow. A SharedReserve is safe for concurrent use. Buckets use it when they are made,
// resized and closed, and not for each call.
type SharedReserve struct {
	mu           sync.Mutex // guards the fields below; locked after a bucket's
	tokens       int64
	size         int64
	issuedTokens int64 // tokens that no request has earned
	requests     int64 // of all buckets, as far as reported
	meter        rateMeter
}

// newSharedReserve returns a full SharedReserve for buckets of the share.
func newSharedReserve(s Sizing, share float64) *SharedReserve {
	long, _ := s.burstSizes(min(share, s.Share), 0, false)
	n := unitsForBurst(long)
	return &SharedReserve{tokens: n, size: n, issuedTokens: n}
}

// start starts to measure the rate of the requests, if that has not begun.
func (r *SharedReserve) startMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.startAt(now, 0)
}

// takeTokens takes up to n tokens, and at most half of the tokens.
func (r *SharedReserve) takeTokens(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.tokens/2)
	r.tokens -= n
	return n
}

// returnTokens adds tokens of a bucket, and the requests that the bucket has counted since its last report.
func (r *SharedReserve) returnTokens(tokens, requests int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests += requests
	r.tokens = min(r.tokens+tokens, r.size)
}

// resize sizes the reserve for the share, the sizing and the rate of all buckets.
func (r *SharedReserve) resize(s Sizing, share float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rps, known := r.meter.measure(now, r.requests)
	known = known && now.Sub(r.meter[0].at) >= minMeasureTime // the calls of a moment are no rate
	long, _ := s.burstSizes(min(share, s.Share), rps, known)
	r.size = unitsForBurst(long)
	if more := r.size - r.issuedTokens; more > 0 {
		r.tokens += more
		r.issuedTokens += more
	}
	r.tokens = min(r.tokens, r.size)
}
