package budget

import (
	"sync"
	"time"
)

// A ReserveSet holds the shared reserves for all buckets of an engine. It must not be used concurrently.
type ReserveSet struct {
	keyReserve    *SharedReserve             // reserve for the buckets of keys and hosts
	routeReserves map[float64]*SharedReserve // reserves for the buckets of routes, by share of the route in hedges per request
}

// NewReserveSet returns the reserves of an engine that has no keys yet: a full reserve for all keys and hosts, and none for
// routes. The size of the reserve follows from s.
func NewReserveSet(s Sizing) ReserveSet {
	return ReserveSet{keyReserve: newSharedReserve(s, s.Share), routeReserves: make(map[float64]*SharedReserve)}
}

// routeReserve returns the reserve for all routes with the given share, in hedges per request. It creates the reserve if it
// does not exist yet.
func (r *ReserveSet) routeReserve(s Sizing, share float64) *SharedReserve {
	if r.routeReserves[share] == nil {
		r.routeReserves[share] = newSharedReserve(s, share)
	}
	return r.routeReserves[share]
}

// A SharedReserve supplies new buckets with their initial tokens. Its purpose is that all its buckets together spend at most
// the configured share of their requests plus one burst. Without a reserve, each new bucket would add a burst. It is safe for
// concurrent use.
//
// A reserve starts with one burst. It can grow to the burst for the request rate of all its buckets together. A new bucket gets
// at most half of the reserve's tokens at a time. Buckets return all their tokens when they are closed, and their surplus
// tokens when they are full.
type SharedReserve struct {
	mu           sync.Mutex // guards the fields that follow; must be locked after the mutex of a bucket
	tokens       int64      // content in billionths of a token
	size         int64      // maximum of tokens, in billionths of a token
	issuedTokens int64      // tokens that were created without a request, in billionths of a token
	requests     int64      // number of requests that the buckets have reported
	meter        rateMeter  // measures the request rate of all buckets together
}

// newSharedReserve returns a full SharedReserve for buckets with the given share, in hedges per request.
func newSharedReserve(s Sizing, share float64) *SharedReserve {
	long, _ := s.burstSizes(min(share, s.Share), 0, false)
	n := unitsForBurst(long)
	return &SharedReserve{tokens: n, size: n, issuedTokens: n}
}

// startMeter starts to measure the request rate at the time now. It does nothing if the measurement has already started.
func (r *SharedReserve) startMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.startAt(now, 0)
}

// takeTokens takes tokens for a bucket, at most n billionths of a token and at most half of the content. It returns the
// number that it has taken.
func (r *SharedReserve) takeTokens(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.tokens/2)
	r.tokens -= n
	return n
}

// returnTokens adds tokens that a bucket returns, in billionths of a token, up to the size of the reserve. Further tokens
// are lost. The argument requests is the number of the bucket's requests that were not reported yet.
func (r *SharedReserve) returnTokens(tokens, requests int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests += requests
	r.tokens = min(r.tokens+tokens, r.size)
}

// resize adapts the size of the reserve to the measured request rate of all its buckets together: it becomes the burst for
// that rate. If the new size exceeds all earlier sizes, resize adds the difference in tokens.
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
