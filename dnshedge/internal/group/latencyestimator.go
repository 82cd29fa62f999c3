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
	initialDelay         = 100 * time.Millisecond // before anything is learned
	initialHandshakeTime = 200 * time.Millisecond // added to initialDelay if a handshake comes first
	maxLossDelay         = 500 * time.Millisecond // the longest loss delay

	maxRTTFactor     = 4   // answers within so many times the fastest measure the path
	minRTTSamples    = 8   // before the path is known
	answersPerUpdate = 16  // after so many answers the delays are computed anew
	lossWindow       = 256 // queries over which losses are counted, and as many before
)

// latencyEstimator learns from a server's answers how long an answer may take before a query is hedged. It is safe for
// concurrent use.
type latencyEstimator struct {
	hedging      *Hedging      // never changes
	key          *policy.Key   // never changes; it knows which part of the budget is worth spending
	minLossDelay time.Duration // of the loss delay; never changes

	learnedLossDelay atomic.Int64 // the loss delay; 0: not known; stored under mu
	learnedSlowDelay atomic.Int64 // the slow delay; 0: not known; stored under mu

	mu            sync.Mutex    // guards the fields below
	answerTimes   sketch.Window // how long answers took
	roundTrips    sketch.Window // how long answers took that the server did not have to look for
	newAnswers    int           // answers since the delays were computed
	recentQueries float64       // queries, of late
	recentAnswers float64       // answers to them
	fastestAnswer time.Duration
	rttP99        time.Duration // of path
	srtt          float64       // ns; 0: not known
	handshakeTime float64       // ns that a handshake takes, smoothed; 0: not known
}

// lossDelay is how long to wait before a packet is considered lost.
func (l *latencyEstimator) lossDelay() time.Duration {
	if d := l.learnedLossDelay.Load(); d > 0 {
		return time.Duration(d)
	}
	return max(initialDelay, l.minLossDelay)
}

// slowDelay is how long to wait until the budget pays for hedging all answers that
// are still to come.
func (l *latencyEstimator) slowDelay() time.Duration {
	if d := l.learnedSlowDelay.Load(); d > 0 {
		return time.Duration(d)
	}
	return initialDelay
}

// hasInitialDelay reports whether the slow delay is the initial one, because too few answers are known.
func (l *latencyEstimator) hasInitialDelay() bool { return l.learnedSlowDelay.Load() == 0 }

// handshakeAllowance is how much longer an answer takes if a handshake comes first.
func (l *latencyEstimator) handshakeAllowance() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshakeTime > 0 {
		return time.Duration(1.5 * l.handshakeTime)
	}
	return initialHandshakeTime
}

// StallTimeout is how long a connection may be silent while queries wait.
func (l *latencyEstimator) StallTimeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(3*l.rttP99, minStallTimeout)
}

// smoothedRTT returns the smoothed round trip time in ns; 0: it is not known.
func (l *latencyEstimator) smoothedRTT() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.srtt
}

// countQuery counts a query.
func (l *latencyEstimator) countQuery() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recentQueries++; l.recentQueries > 2*lossWindow {
		l.recentQueries, l.recentAnswers = l.recentQueries/2, l.recentAnswers/2
	}
}

// RecordHandshake learns how long a handshake takes.
func (l *latencyEstimator) RecordHandshake(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakeTime = rtt.SmoothRTT(l.handshakeTime, took)
}

// recordLatency adds the latency of a response and the round trip time of its path.
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
	switch {
	case took <= max(maxRTTFactor*base, 2*time.Millisecond):
		l.recordRTT(now, took)
	case path > 0:
		l.recordRTT(now, path)
	}
	if l.newAnswers++; l.newAnswers >= answersPerUpdate || l.learnedLossDelay.Load() == 0 || l.learnedSlowDelay.Load() == 0 {
		l.newAnswers = 0
		l.updateDelays()
	}
}

// recordRTT adds a round trip time. The caller holds mu.
func (l *latencyEstimator) recordRTT(now time.Time, d time.Duration) {
	l.roundTrips.Add(now, d)
	l.srtt = rtt.SmoothRTT(l.srtt, d)
}

// updateDelays computes the delays anew. The caller holds mu.
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
	// A rttP99 far above the p95 is no jitter of the path but the latency that hedges are
	// there to avoid. With few samples both are uncertain, and the median has a say.
	d := max(min(l.rttP99, p95+p95/4), median+median/4) + 4*medianDeviation(&l.roundTrips, median)
	l.learnedLossDelay.Store(int64(min(max(d, l.minLossDelay), max(maxLossDelay, l.minLossDelay))))
}

// affordableDelay returns the slow delay. Lost queries must be hedged however long
// the delay is; the rest of the budget pays for hedging the answers that take longer
// than the delay. The caller holds mu.
func (l *latencyEstimator) affordableDelay() time.Duration {
	budget := budgetMargin * l.hedging.Share * l.key.Snapshot().BudgetScale
	room := max(budget-l.lossRate(), budget/4)
	d, _ := l.answerTimes.Quantile(max(1-room, l.hedging.Percentile))
	d += d / 100 // the upper edge of a bucket, so that answers in it are not hedged
	return min(d, l.hedging.MaxDelay)
}

// lossRate returns the share of recent queries without an answer. The caller holds mu.
func (l *latencyEstimator) lossRate() float64 {
	return max(1-l.recentAnswers/max(l.recentQueries, 1), 0)
}

// medianDeviation returns the median absolute deviation of the window's samples.
func medianDeviation(w *sketch.Window, median time.Duration) time.Duration {
	type part struct {
		off   time.Duration
		share float64
	}
	var parts []part
	var above float64
	var last *part
	for edge, over := range w.Tail() {
		// A bucket's share is known when the next, faster one is.
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
