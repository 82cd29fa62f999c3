package group

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/sketch"
)

const (
	initialHandshakeTime = 200 * time.Millisecond // time that a handshake may add to a hedge delay before its duration is learned
	minStallTimeout      = time.Second            // least result of latencyEstimator.StallTimeout
	maxLossDelay         = 500 * time.Millisecond // longest loss delay, unless the configured minimum is longer

	maxRTTFactor     = 4   // a latency above this multiple of the round trip time is no sample of the round trip time
	minRTTSamples    = 8   // number of round trip times that are needed to learn the loss delay
	answersPerUpdate = 16  // number of responses after which the delays are computed again
	lossWindow       = 256 // number of recent queries that the loss rate covers; varies between lossWindow and 2*lossWindow
)

// A latencyEstimator estimates two delays for queries to one server from response latencies. After the loss delay, a
// query or its response is probably lost. The slow delay is the shortest hedge delay for which the hedge budget
// suffices. It is safe for concurrent use.
type latencyEstimator struct {
	hedging            *Hedging      // the Client's configuration; never changes
	key                *policy.Key   // the server's latency key, which limits the share of the budget that is used; never changes
	minLossDelay       time.Duration // shortest loss delay; never changes
	minUnansweredDelay time.Duration // shortest result of unansweredDelay; never changes

	rto rtoEstimator // retransmission timeout; has a lock of its own

	learnedLossDelay atomic.Int64 // in nanoseconds; 0: not learned yet; stored under mu
	learnedSlowDelay atomic.Int64 // in nanoseconds; 0: not learned yet; stored under mu

	mu            sync.Mutex    // guards the fields below
	answerTimes   sketch.Window // latencies of all responses
	roundTrips    sketch.Window // latencies of fast responses and measured round trip times of the network
	newAnswers    int           // number of responses since the delays were computed
	recentQueries float64       // number of queries in the loss window
	recentAnswers float64       // number of responses in the loss window
	fastestAnswer time.Duration // shortest recorded latency; 0: none
	rttP99        time.Duration // 99th percentile of roundTrips; 0: too few samples
	srtt          float64       // smoothed round trip time in nanoseconds; 0: no sample
	handshakeTime float64       // smoothed duration of a handshake in nanoseconds; 0: no sample
}

// lossDelay returns the time after which an unanswered query, or its response, was probably lost in the network. Until
// eight round trip times have been recorded (minRTTSamples), it is 100 ms (initialDelay), or the configured minimum of
// the hedge delay (minLossDelay) if that is longer.
func (l *latencyEstimator) lossDelay() time.Duration {
	return cmp.Or(time.Duration(l.learnedLossDelay.Load()), max(initialDelay, l.minLossDelay))
}

// unansweredDelay returns the time after which a query counts as unanswered in the server's health. This is the time
// after which a query is probably lost (lossDelay), but at least 10 ms, or 2 ms for a server on this machine.
func (l *latencyEstimator) unansweredDelay() time.Duration {
	return max(l.lossDelay(), l.minUnansweredDelay)
}

// slowDelay returns the delay after which a query counts as slow and is hedged. The hedge budget suffices for hedging
// every query that is still unanswered after that delay. It is 100 ms (initialDelay) until ten latencies have been
// recorded (policy.MinSamples).
func (l *latencyEstimator) slowDelay() time.Duration {
	return cmp.Or(time.Duration(l.learnedSlowDelay.Load()), initialDelay)
}

// handshakeAllowance returns the time by which timeouts and hedge delays must be extended if a query needs a
// handshake first. It is 1.5 times the smoothed duration of a handshake, or 200 ms before the first sample.
func (l *latencyEstimator) handshakeAllowance() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshakeTime > 0 {
		return time.Duration(1.5 * l.handshakeTime)
	}
	return initialHandshakeTime
}

// StallTimeout returns how long a connection with unanswered queries may receive no byte before the transport must
// presume that it is dead. It is three times the 99th percentile of the round trip times, but at least a second.
func (l *latencyEstimator) StallTimeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(3*l.rttP99, minStallTimeout)
}

// smoothedRTT returns the smoothed round trip time in nanoseconds. It is 0 if there is no sample yet.
func (l *latencyEstimator) smoothedRTT() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.srtt
}

// countQuery counts a query that was sent to the server, for the loss rate. After 512 queries (twice lossWindow), it
// halves the counts of queries and responses, so that older queries count less.
func (l *latencyEstimator) countQuery() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recentQueries++; l.recentQueries > 2*lossWindow {
		l.recentQueries, l.recentAnswers = l.recentQueries/2, l.recentAnswers/2
	}
}

// RecordHandshake records the duration of a handshake with the server. Timeouts and hedge delays of queries that need a
// handshake become longer accordingly.
func (l *latencyEstimator) RecordHandshake(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakeTime = rtt.SmoothRTT(l.handshakeTime, took)
}

// recordLatency adds took, the latency of a response, to the samples. path is the round trip time that the operating
// system measured, or 0 if it is unknown. It replaces took as a sample of the round trip time if took is far longer.
func (l *latencyEstimator) recordLatency(took, path time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answerTimes.Add(now, took)
	l.recentAnswers++
	if l.fastestAnswer == 0 || took < l.fastestAnswer {
		l.fastestAnswer = took
	}
	base := l.fastestAnswer
	if path > 0 {
		base = path
	}
	sample := took // of the round trip time of the network
	isSlow := took > max(maxRTTFactor*base, 2*time.Millisecond)
	if isSlow {
		sample = path
	}
	if !isSlow || path > 0 {
		l.roundTrips.Add(now, sample)
		l.srtt = rtt.SmoothRTT(l.srtt, sample)
	}
	if l.newAnswers++; l.newAnswers >= answersPerUpdate || l.learnedLossDelay.Load() == 0 || l.learnedSlowDelay.Load() == 0 {
		l.newAnswers = 0
		l.updateDelays()
	}
}

// updateDelays computes from the recorded latencies after which time a query counts as lost (lossDelay) and as slow
// (slowDelay). It changes neither if there are too few samples. The caller must hold mu.
func (l *latencyEstimator) updateDelays() {
	l.fastestAnswer, _ = l.answerTimes.Quantile(0)
	if l.answerTimes.Len() >= policy.MinSamples {
		l.learnedSlowDelay.Store(int64(l.affordableDelay()))
	}
	if l.roundTrips.Len() < minRTTSamples {
		return
	}
	l.rttP99, _ = l.roundTrips.Quantile(0.99)
	p95, _ := l.roundTrips.Quantile(0.95)
	median, _ := l.roundTrips.Quantile(0.5)
	// A 99th percentile far above the 95th is no jitter of the network, but the latency that
	// hedges avoid. With few samples both are uncertain, so the median sets a minimum.
	d := max(min(l.rttP99, p95+p95/4), median+median/4) + 4*medianDeviation(&l.roundTrips, median)
	l.learnedLossDelay.Store(int64(min(max(d, l.minLossDelay, 1), max(maxLossDelay, l.minLossDelay)))) // at least 1 ns, because 0 means not learned
}

// affordableDelay returns the shortest hedge delay for which the hedge budget suffices. This is the latency that the
// affordable share of the responses exceeds. It is at least the latency at Hedging.Percentile, and at most
// Hedging.MaxDelay. The caller must hold mu.
func (l *latencyEstimator) affordableDelay() time.Duration {
	budget := budgetMargin * l.hedging.Share * l.key.Snapshot().BudgetScale
	room := max(budget-l.lossRate(), budget/4) // lost queries are hedged after any delay
	d, _ := l.answerTimes.Quantile(max(1-room, l.hedging.Percentile))
	d += d / 100 // the upper edge of the histogram bucket, so that responses in this bucket are not hedged
	return min(d, l.hedging.MaxDelay)
}

// lossRate returns the share of recent queries that had no response, between 0 and 1. The caller must hold mu.
func (l *latencyEstimator) lossRate() float64 {
	return max(1-l.recentAnswers/max(l.recentQueries, 1), 0)
}

// medianDeviation returns the median absolute deviation of the durations in w, a measure of their spread that outliers
// hardly change. It is the median of the distances from median, which must be the median of w. It returns 0 if w is
// empty.
func medianDeviation(w *sketch.Window, median time.Duration) time.Duration {
	type part struct {
		off   time.Duration
		share float64
	}
	var parts []part
	var above float64
	var last *part
	for edge, over := range w.Tail() {
		// The share of a bucket follows from the next bucket, which is faster.
		if last != nil {
			last.share = over - above
		}
		above = over
		parts = append(parts, part{off: (edge - median).Abs()})
		last = &parts[len(parts)-1]
	}
	if last != nil {
		last.share = 1 - above
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	var sum float64
	for _, p := range parts {
		if sum += p.share; sum >= 0.5 {
			return p.off
		}
	}
	return 0
}

const (
	firstRTO = time.Second            // timeout before the first sample (RFC 6298 §2.1)
	minRTO   = 200 * time.Millisecond // shortest timeout; RFC 6298 recommends a second, which is too long for DNS
	maxRTO   = time.Minute            // longest timeout, after all doublings (RFC 6298 §2.5)
)

// An rtoEstimator computes the retransmission timeout of one server from the latencies of its responses (RFC 6298).
// The zero value has no sample. It is safe for concurrent use.
type rtoEstimator struct {
	mu          sync.Mutex // guards the fields below
	estimate    rtt.Estimate[float64]
	doublings   int       // number of times that the timeout was doubled since the last response
	lastDoubled time.Time // time at which the timeout was doubled last
}

// recordRTT records the latency of a response, took, in the estimate of the retransmission timeout. It also ends the
// doubling of that timeout, which unanswered queries cause.
func (r *rtoEstimator) recordRTT(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doublings = 0
	// A response to a retransmission is a sample too, unlike in TCP (RFC 6298 §3): its ID shows which query it answers.
	r.estimate.AddSample(took, 1./2)
}

// backOff doubles the retransmission timeout because a query, sent at the time sent, is unanswered at the time now. It
// does nothing if the query was sent before the last doubling, or has waited for less than the timeout without
// doublings.
func (r *rtoEstimator) backOff(sent, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Queries in flight at the same time double the timeout only once (RFC 6298 §5).
	// Near the deadline, a query is presumed lost before the timeout, which is then not doubled (see presumedLossTime).
	if sent.After(r.lastDoubled) && now.Sub(sent) >= r.doubledTimeout(0) {
		r.doublings, r.lastDoubled = r.doublings+1, now
	}
}

// currentTimeout returns how long to wait for a response before the next retransmission. The timeout doubles with each
// earlier retransmission of the question. If withBackOff is true, it doubles at least as often as unanswered queries
// have doubled it since the server's last response.
func (r *rtoEstimator) currentTimeout(retransmissions int, withBackOff bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if withBackOff { // the next query goes to the same server, or to a silent one
		retransmissions = max(retransmissions, r.doublings)
	}
	return r.doubledTimeout(retransmissions)
}

// doubledTimeout returns the retransmission timeout after the given number of doublings, at most a minute (maxRTO).
// The caller must hold mu.
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

// canAnswerWithin reports whether the server, if it works, probably responds within the duration d: its retransmission
// timeout is at most d. It returns true if neither a response nor a timeout has been recorded yet.
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
