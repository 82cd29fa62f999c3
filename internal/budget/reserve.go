package budget

import (
	"sync"
	"time"
)

// Reserves are the reserves for all buckets of an engine. They are not safe for concurrent use.
type Reserves struct {
	keyReserve    *SharedReserve             // for the buckets of keys and hosts
	routeReserves map[float64]*SharedReserve // for the buckets of routes, by their share
}

// NewReserves returns Reserves with a full reserve for keys.
func NewReserves(s Sizing) Reserves {
	return Reserves{keyReserve: newSharedReserve(s, s.Share), routeReserves: make(map[float64]*SharedReserve)}
}

// routeReserve returns the reserve for the buckets of all routes with the given share, and creates it if it is missing.
func (r *Reserves) routeReserve(s Sizing, share float64) *SharedReserve {
	if r.routeReserves[share] == nil {
		r.routeReserves[share] = newSharedReserve(s, share)
	}
	return r.routeReserves[share]
}

// A SharedReserve supplies new buckets with their initial tokens, so that all its buckets together spend at most the share of their
// requests and one burst. Without a reserve, each new bucket would add another burst. It is safe for concurrent use.
//
// A reserve starts with one burst. It grows to at most a burst at the request rate of all its buckets. A new bucket gets at most half of
// the tokens at a time. Closed buckets return their tokens, and full buckets their overflow.
type SharedReserve struct {
	mu           sync.Mutex // guards the fields below; locked after the mutex of a bucket
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

// startMeter starts the measurement of the request rate, unless it runs already.
func (r *SharedReserve) startMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.startAt(now, 0)
}

// takeTokens removes up to n units, but at most half of the reserve, and returns the number of removed units.
func (r *SharedReserve) takeTokens(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.tokens/2)
	r.tokens -= n
	return n
}

// returnTokens adds the units that a bucket returns. It also counts the requests of the bucket since its last report.
func (r *SharedReserve) returnTokens(tokens, requests int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests += requests
	r.tokens = min(r.tokens+tokens, r.size)
}

// resize sets the size to a burst at the request rate of all buckets. When the size exceeds all earlier sizes, it adds the difference in
// tokens.
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
