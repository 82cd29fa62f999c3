package dnshedge

import (
	"sync"
	"time"
)

const (
	firstRTO = time.Second            // RFC 6298 §2.1
	minRTO   = 200 * time.Millisecond // the RFC's second would make a lost packet cost as much
	maxRTO   = time.Minute            // §2.5
)

// rto computes a server's retransmission timeout, as RFC 6298 does. Karn's rule
// (§3) holds by itself: every query has an ID and a socket or connection of its own,
// and so nobody mistakes the answer to one for the answer to another. The zero
// value has measured nothing. It is safe for concurrent use.
type rto struct {
	mu      sync.Mutex // guards the fields below
	srtt    float64    // ns
	rttvar  float64    // ns
	backoff int        // how often the timeout was doubled since the last answer
	doubled time.Time  // the last time
}

// learn takes a measurement, which ends the back-off.
func (r *rto) learn(took time.Duration) {
	d := float64(took)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backoff = 0
	if r.srtt == 0 {
		r.srtt, r.rttvar = d, d/2
		return
	}
	r.rttvar += (max(r.srtt-d, d-r.srtt) - r.rttvar) / 4
	r.srtt += (d - r.srtt) / 8
}

// backOff doubles the timeout: a query that was sent at that time had no answer, and
// nor had any other since. Queries that were sent before the last doubling do not count:
// there is one timer for all that is under way, as there is for a connection (§5).
func (r *rto) backOff(sent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.After(r.doubled) {
		r.backoff, r.doubled = r.backoff+1, now
	}
}

// timeout returns how long to wait for an answer to a question that was sent again
// so often.
func (r *rto) timeout(resends int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := firstRTO
	if r.srtt > 0 {
		// The quarter stands for the granularity that §2.3 adds: answers that all take the
		// same time would make the timeout just as long.
		d = max(minRTO, time.Duration(r.srtt+max(4*r.rttvar, r.srtt/4)))
	}
	for n := max(r.backoff, resends); n > 0 && d < maxRTO; n-- {
		d *= 2
	}
	return min(d, maxRTO)
}
