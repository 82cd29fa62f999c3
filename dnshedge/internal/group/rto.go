package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	firstRTO = time.Second            // RFC 6298 §2.1
	minRTO   = 200 * time.Millisecond // RFC 6298 recommends a second, which is too long for DNS
	maxRTO   = time.Minute            // §2.5
)

// An rtoEstimator computes a server's retransmission timeout (RFC 6298). Karn's rule (§3) always holds: every query has
// its own ID and socket or connection, so no answer is attributed to the wrong query. The zero value has no sample. It
// is safe for concurrent use.
type rtoEstimator struct {
	mu          sync.Mutex // guards the fields below
	estimate    rtt.Estimate[float64]
	doublings   int       // number of doublings since the last answer
	lastDoubled time.Time // time of the last doubling
}

// recordRTT adds the latency of an answer and ends the doubling of the timeout.
func (r *rtoEstimator) recordRTT(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doublings = 0
	r.estimate.AddSample(took, 1./2)
}

// backOff doubles the timeout after a query, sent at the given time, had no answer. It does nothing if that query was
// sent before the last doubling: all queries in flight share one timer, like the segments of a connection (§5).
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

// currentTimeout returns how long to wait for an answer before the next retransmission of a question. resends is the
// number of retransmissions so far. same is set if the next one goes to the same server: then doublings because of
// other questions count as well.
func (r *rtoEstimator) currentTimeout(resends int, same bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if same {
		resends = max(resends, r.doublings)
	}
	return r.doubledTimeout(resends)
}

// doubledTimeout returns the timeout after the given number of doublings, at most maxRTO. The caller holds mu.
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

// canAnswerWithin reports whether the server can be expected to answer within d if it works. The estimate is the
// timeout without doublings, or without samples, the doubled initial timeout. It reports true if nothing is known.
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
