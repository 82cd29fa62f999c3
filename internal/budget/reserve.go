package budget

import (
	"sync"
	"time"
)

// A Reserve is what buckets begin with, so that no number of buckets pays for more than
// the share of all their requests and one burst. A new bucket takes its start from it, at most half of
// what is there at a time; a bucket that is closed puts back what it has, and one that is full what
// it earns beyond that. The Reserve begins with a burst, and has been given no more, nor
// holds more, than a burst at the rate of all the buckets together. It is safe for concurrent use. No call
// asks it: buckets do, when they are made, followed and closed.
type Reserve struct {
	mu       sync.Mutex // guards the fields below; locked after a bucket's
	held     int64
	size     int64
	given    int64 // that no request has earned
	requests int64 // of all buckets, as far as they have told
	meter    meter
}

// NewReserve returns a full Reserve for buckets of the share.
func NewReserve(s Sizing, share float64) *Reserve {
	long, _ := s.bursts(min(share, s.Share), 0, false)
	n := sizeOf(long)
	return &Reserve{held: n, size: n, given: n}
}

// start says when the first request was.
func (r *Reserve) start(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.start(now, 0)
}

// take takes up to so many tokens, and at most half of what there is.
func (r *Reserve) take(most int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pay(most)
}

// pay is take. The caller holds mu.
func (r *Reserve) pay(most int64) int64 {
	n := min(most, r.held/2)
	r.held -= n
	return n
}

// put puts tokens back, of a bucket that has counted so many more requests.
func (r *Reserve) put(tokens, requests int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests += requests
	r.held = min(r.held+tokens, r.size)
}

// follow sizes the Reserve for the share, the sizing and the rate of all buckets.
func (r *Reserve) follow(s Sizing, share float64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rps, known := r.meter.measure(now, r.requests)
	known = known && now.Sub(r.meter[0].at) >= minMeasured // the calls of a moment are no rate
	long, _ := s.bursts(min(share, s.Share), rps, known)
	r.size = sizeOf(long)
	if more := r.size - r.given; more > 0 {
		r.held += more
		r.given += more
	}
	r.held = min(r.held, r.size)
}
