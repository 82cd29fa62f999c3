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
	initialDelay         = 100 * time.Millisecond // hedge delay before any is learned
	initialHandshakeTime = 200 * time.Millisecond // added to initialDelay if the query needs a handshake
	maxLossDelay         = 500 * time.Millisecond // the longest loss delay

	maxRTTFactor     = 4   // answers at most so many times slower than the round trip time are samples of it
	minRTTSamples    = 8   // round trip times before the loss delay is computed
	answersPerUpdate = 16  // answers after which the delays are computed again
	lossWindow       = 256 // the loss rate covers the last lossWindow to 2*lossWindow queries
)

// A latencyEstimator learns from a server's answers when to hedge a query. The loss delay is the time after which a
// packet is probably lost. The slow delay is the time after which the budget pays for a hedge of every late answer. It
// is safe for concurrent use.
type latencyEstimator struct {
	hedging      *Hedging      // never changes
	key          *policy.Key   // never changes; its BudgetScale limits the share of the budget that is used
	minLossDelay time.Duration // shortest loss delay; never changes

	learnedLossDelay atomic.Int64 // 0: not known; stored under mu
	learnedSlowDelay atomic.Int64 // 0: not known; stored under mu

	mu            sync.Mutex    // guards the fields below
	answerTimes   sketch.Window // latencies of all answers
	roundTrips    sketch.Window // latencies of fast answers, which approximate the network's round trip time
	newAnswers    int           // answers since the delays were computed
	recentQueries float64       // queries in the loss window
	recentAnswers float64       // answers in the loss window
	fastestAnswer time.Duration
	rttP99        time.Duration // 99th percentile of roundTrips
	srtt          float64       // smoothed round trip time in ns; 0: not known
	handshakeTime float64       // smoothed duration of a handshake in ns; 0: not known
}

// lossDelay returns the time after which a packet is probably lost, learned or initial.
func (l *latencyEstimator) lossDelay() time.Duration {
	if d := l.learnedLossDelay.Load(); d > 0 {
		return time.Duration(d)
	}
	return max(initialDelay, l.minLossDelay)
}

// slowDelay returns the time after which the budget pays for a hedge of every answer that has not arrived, learned or
// initial.
func (l *latencyEstimator) slowDelay() time.Duration {
	if d := l.learnedSlowDelay.Load(); d > 0 {
		return time.Duration(d)
	}
	return initialDelay
}

// hasInitialDelay reports whether the slow delay is the initial one, because there are too few answers to learn it.
func (l *latencyEstimator) hasInitialDelay() bool { return l.learnedSlowDelay.Load() == 0 }

// handshakeAllowance returns the additional time to wait for an answer if the query needs a handshake.
func (l *latencyEstimator) handshakeAllowance() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshakeTime > 0 {
		return time.Duration(1.5 * l.handshakeTime)
	}
	return initialHandshakeTime
}

// StallTimeout returns how long a connection with waiting queries may receive nothing before it is given up.
func (l *latencyEstimator) StallTimeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(3*l.rttP99, minStallTimeout)
}

// smoothedRTT returns the smoothed round trip time in ns, or 0 if it is not known.
func (l *latencyEstimator) smoothedRTT() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.srtt
}

// countQuery counts a query for the loss rate.
func (l *latencyEstimator) countQuery() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recentQueries++; l.recentQueries > 2*lossWindow {
		l.recentQueries, l.recentAnswers = l.recentQueries/2, l.recentAnswers/2
	}
}

// RecordHandshake adds the duration of a handshake.
func (l *latencyEstimator) RecordHandshake(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshakeTime = rtt.SmoothRTT(l.handshakeTime, took)
}

// recordLatency adds the latency of an answer and the round trip time of its network path, or 0 if that was not
// measured.
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

// updateDelays computes the loss delay and the slow delay from the recorded latencies. The caller holds mu.
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

// affordableDelay computes the slow delay. Hedges of lost queries use a part of the budget at any delay. The rest of
// the budget must pay for hedging the answers that are slower than the result. The caller holds mu.
func (l *latencyEstimator) affordableDelay() time.Duration {
	budget := budgetMargin * l.hedging.Share * l.key.Snapshot().BudgetScale
	room := max(budget-l.lossRate(), budget/4)
	d, _ := l.answerTimes.Quantile(max(1-room, l.hedging.Percentile))
	d += d / 100 // the upper edge of a bucket, so that answers in it are not hedged
	return min(d, l.hedging.MaxDelay)
}

// lossRate returns the share of recent queries that had no answer. The caller holds mu.
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
