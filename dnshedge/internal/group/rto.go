package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	firstRTO = time.Second            // RFC 6298 §2.1
	minRTO   = 200 * time.Millisecond // the RFC's second would make a lost packet cost as much
	maxRTO   = time.Minute            // §2.5
)

// rtoEstimator computes a server's retransmission timeout by RFC 6298. Karn's rule (§3) holds without further code:
// every query has its own ID and socket or connection, and so an answer is never attributed to another query. The zero
// value has no sample. It is safe for concurrent use.
type rtoEstimator struct {
	mu          sync.Mutex // guards the fields below
	estimate    rtt.Estimate[float64]
	doublings   int       // how often the timeout was doubled since the last answer
	lastDoubled time.Time // the last time
}

// recordRTT takes a measurement, which ends the back-off.
func (r *rtoEstimator) recordRTT(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doublings = 0
	r.estimate.AddSample(took, 1./2)
}

// backOff doubles the timeout: a query that was sent at that time had no answer, and
// nor had any other since. Queries that were sent before the last doubling do not count:
// there is one timer for all that is under way, as there is for a connection (§5).
func (r *rtoEstimator) backOff(sent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.After(r.lastDoubled) {
		r.doublings, r.lastDoubled = r.doublings+1, now
	}
}

// isDoubled reports whether the timeout was doubled since the last answer.
func (r *rtoEstimator) isDoubled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doublings > 0
}

// currentTimeout returns how long to wait for an answer to a question that was sent again
// so often, before the same server is asked again, or another.
func (r *rtoEstimator) currentTimeout(resends int, same bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if same {
		resends = max(resends, r.doublings)
	}
	return r.doubledTimeout(resends)
}

// doubledTimeout returns the timeout that was doubled so often. The caller holds mu.
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

// canAnswerWithin reports whether an answer may be expected within d, if one comes at all: by the times that answers have taken, or if there was none, how
// long one was waited for.
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
