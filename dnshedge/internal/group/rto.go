package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	firstRTO = time.Second            // timeout before the first sample (RFC 6298 §2.1)
	minRTO   = 200 * time.Millisecond // shortest timeout; RFC 6298 recommends a second, which is too long for DNS
	maxRTO   = time.Minute            // longest timeout, after all doublings (RFC 6298 §2.5)
)

// An rtoEstimator computes the retransmission timeout of one server (RFC 6298). Every query has its own ID and socket
// or connection. So no response is attributed to the wrong query, as Karn's rule demands (§3).
//
// The zero value has no sample. It is safe for concurrent use.
type rtoEstimator struct {
	mu          sync.Mutex // guards the fields below
	estimate    rtt.Estimate[float64]
	doublings   int       // number of times that the timeout was doubled since the last response
	lastDoubled time.Time // time at which the timeout was doubled last
}

// recordRTT records the latency of a response, took, from which the timeout is computed. It also ends the doubling of
// the timeout.
func (r *rtoEstimator) recordRTT(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doublings = 0
	r.estimate.AddSample(took, 1./2)
}

// backOff doubles the retransmission timeout because a query that was sent at the time sent is still unanswered. now is
// the present time.
//
// It does nothing if the query was sent before the last doubling. So queries in flight at the same time double the
// timeout once, like the segments of a TCP connection (RFC 6298 §5).
func (r *rtoEstimator) backOff(sent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.After(r.lastDoubled) {
		r.doublings, r.lastDoubled = r.doublings+1, now
	}
}

// isDoubled reports whether backOff has doubled the timeout since the last response.
func (r *rtoEstimator) isDoubled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doublings > 0
}

// currentTimeout returns how long to wait for a response before the next retransmission of a question. The timeout is
// doubled for each earlier retransmission of that question, of which there are resends.
//
// same must be true if the next retransmission goes to the same server. In that case, doublings because of other
// questions to the server count as well.
func (r *rtoEstimator) currentTimeout(resends int, same bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if same {
		resends = max(resends, r.doublings)
	}
	return r.doubledTimeout(resends)
}

// doubledTimeout returns the timeout after the given number of doublings, at most maxRTO. The caller must hold mu.
func (r *rtoEstimator) doubledTimeout(doublings int) time.Duration {
	d := firstRTO
	if r.estimate.SRTT > 0 {
		d = r.estimate.UpperBound(r.estimate.SRTT/4, minRTO)
	}
	for n := doublings; n > 0 && d < maxRTO; n-- {
		d *= 2
	}
	return min(d, maxRTO)
}

// canAnswerWithin reports whether the server, if it works, will probably respond within d. The expected time is the
// timeout without doublings. Before the first sample, it is firstRTO with its doublings.
//
// It returns true if there are neither samples nor doublings.
func (r *rtoEstimator) canAnswerWithin(d time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.estimate.SRTT > 0:
		return r.doubledTimeout(0) <= d
	case r.doublings > 0:
		return r.doubledTimeout(r.doublings) <= d
	}
	return true
}
