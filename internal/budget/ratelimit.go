package budget

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A RateLimit limits the hedges per second of several accounts together. A nil RateLimit sets no limit. It is safe for concurrent use.
type RateLimit struct {
	mu         sync.Mutex // held while an account spends; locked before the mutex of a bucket; guards latestTime
	limiter    *rate.Limiter
	latestTime time.Time // latest time that a method was called with
}

// NewRateLimit returns a limit of perSecond hedges per second. It returns nil, which sets no limit, if perSecond is not positive.
func NewRateLimit(perSecond float64) *RateLimit {
	if perSecond <= 0 {
		return nil
	}
	return &RateLimit{limiter: rate.NewLimiter(rate.Limit(min(perSecond, math.MaxFloat64)), int(unitsForBurst(perSecond)/tokenUnits))} // rate.Inf is not +Inf
}

func (l *RateLimit) lock() {
	if l != nil {
		l.mu.Lock()
	}
}

func (l *RateLimit) unlock() {
	if l != nil {
		l.mu.Unlock()
	}
}

// monotonicTime returns the latest time that it was called with, including now. If time went back, the limiter would earn tokens twice. If
// now is more than a second earlier, the clock was set back, and monotonicTime returns now. The caller holds mu.
func (l *RateLimit) monotonicTime(now time.Time) time.Time {
	if late := l.latestTime.Sub(now); late <= 0 || late >= time.Second { // or the clock was set back
		l.latestTime = now
	}
	return l.latestTime
}

// canSpend reports whether the limit allows one more hedge. The caller holds mu.
func (l *RateLimit) canSpend(now time.Time) bool {
	return l == nil || l.limiter.TokensAt(l.monotonicTime(now)) >= 1
}

// spendTokens takes one token for each hedge. A negative number of hedges puts tokens back. The caller holds mu.
func (l *RateLimit) spendTokens(now time.Time, hedges int) {
	if l != nil {
		l.limiter.AllowN(l.monotonicTime(now), hedges)
	}
}

// isHalfFull reports whether the limiter holds at least half of its burst, and at least one token. It locks mu.
func (l *RateLimit) isHalfFull(now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.TokensAt(now) >= max(1, float64(l.limiter.Burst())/2)
}
