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
	coldDelay = 100 * time.Millisecond // before anything is learned
	coldSetup = 200 * time.Millisecond // added to coldDelay if a handshake comes first
	maxLoss   = 500 * time.Millisecond // the longest loss delay

	pathFactor       = 4   // answers within so many times the fastest measure the path
	minPathSamples   = 8   // before the path is known
	answersPerUpdate = 16  // after so many answers the delays are computed anew
	lossWindow       = 256 // queries over which losses are counted, and as many before
)

// learner learns from a server's answers when a query to it is late. It is safe for concurrent use.
type learner struct {
	hedging *Hedging      // never changes
	key     *policy.Key   // never changes; it knows which part of the budget is worth spending
	floor   time.Duration // of the loss delay; never changes

	loss atomic.Int64 // the loss delay; 0: not known; stored under mu
	slow atomic.Int64 // the slow delay; 0: not known; stored under mu

	mu         sync.Mutex    // guards the fields below
	answers    sketch.Window // how long answers took
	path       sketch.Window // how long answers took that the server did not have to look for
	newAnswers int           // answers since the delays were computed
	sent       float64       // queries, of late
	got        float64       // answers to them
	fastest    time.Duration
	p99        time.Duration // of path
	srtt       float64       // ns; 0: not known
	handshake  float64       // ns that a handshake takes, smoothed; 0: not known
}

// lossDelay is how long to wait before a packet is considered lost.
func (l *learner) lossDelay() time.Duration {
	if d := l.loss.Load(); d > 0 {
		return time.Duration(d)
	}
	return max(coldDelay, l.floor)
}

// slowDelay is how long to wait until the budget pays for hedging all answers that
// are still to come.
func (l *learner) slowDelay() time.Duration {
	if d := l.slow.Load(); d > 0 {
		return time.Duration(d)
	}
	return coldDelay
}

// cold reports whether the slow delay is a guess.
func (l *learner) cold() bool { return l.slow.Load() == 0 }

// setupTime is how much longer an answer takes if a handshake comes first.
func (l *learner) setupTime() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshake > 0 {
		return time.Duration(1.5 * l.handshake)
	}
	return coldSetup
}

// Stall is how long a connection may be silent while queries wait.
func (l *learner) Stall() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(3*l.p99, minStall)
}

// roundTrip returns the smoothed round trip time in ns; 0: it is not known.
func (l *learner) roundTrip() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.srtt
}

// wrote counts a query.
func (l *learner) wrote() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent++; l.sent > 2*lossWindow {
		l.sent, l.got = l.sent/2, l.got/2
	}
}

// Handshake learns how long a handshake takes.
func (l *learner) Handshake(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handshake = rtt.Smooth(l.handshake, took)
}

// answered learns from a response.
func (l *learner) answered(took, path time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers.Add(now, took)
	l.got++
	if l.fastest == 0 || took < l.fastest {
		l.fastest = took
	}
	base := l.fastest
	if path > 0 {
		base = path
	}
	switch {
	case took <= max(pathFactor*base, 2*time.Millisecond):
		l.addPath(now, took)
	case path > 0:
		l.addPath(now, path)
	}
	if l.newAnswers++; l.newAnswers >= answersPerUpdate || l.loss.Load() == 0 || l.slow.Load() == 0 {
		l.newAnswers = 0
		l.updateDelays()
	}
}

// addPath adds a measurement of the path. The caller holds mu.
func (l *learner) addPath(now time.Time, d time.Duration) {
	l.path.Add(now, d)
	l.srtt = rtt.Smooth(l.srtt, d)
}

// updateDelays computes the delays anew. The caller holds mu.
func (l *learner) updateDelays() {
	l.fastest, _ = l.answers.Quantile(0)
	if l.answers.Len() >= policy.MinSamples {
		l.slow.Store(int64(l.affordableDelay()))
	}
	if l.path.Len() < minPathSamples {
		return
	}
	l.p99, _ = l.path.Quantile(0.99)
	p95, _ := l.path.Quantile(0.95)
	median, _ := l.path.Quantile(0.5)
	// A p99 far above the p95 is no jitter of the path but the latency that hedges are
	// there to avoid. With few samples both are uncertain, and the median has a say.
	d := max(min(l.p99, p95+p95/4), median+median/4) + 4*deviation(&l.path, median)
	l.loss.Store(int64(min(max(d, l.floor), max(maxLoss, l.floor))))
}

// affordableDelay returns the slow delay. Lost queries must be hedged however long
// the delay is; the rest of the budget pays for hedging the answers that take longer
// than the delay. The caller holds mu.
func (l *learner) affordableDelay() time.Duration {
	budget := planMargin * l.hedging.Share * l.key.Snapshot().Scale
	room := max(budget-l.lost(), budget/4)
	d, _ := l.answers.Quantile(max(1-room, l.hedging.Percentile))
	d += d / 100 // the upper edge of a bucket, so that answers in it are not hedged
	return min(d, l.hedging.MaxDelay)
}

// lost returns the share of the queries of late without an answer. The caller holds mu.
func (l *learner) lost() float64 { return max(1-l.got/max(l.sent, 1), 0) }

// deviation returns the median absolute deviation of the window's samples.
func deviation(w *sketch.Window, median time.Duration) time.Duration {
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
