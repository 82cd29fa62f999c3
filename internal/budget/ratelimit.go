package budget

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A RateLimit bounds the hedges per second of several accounts together. A nil RateLimit sets no bound. It is safe for concurrent use.
type RateLimit struct {
	mu         sync.Mutex // held while an account pays; locked before a bucket's; guards latest
	limiter    *rate.Limiter
	latestTime time.Time // at which an account paid, or tried to
}

// NewRateLimit returns a RateLimit of so many hedges per second; nil, which sets no bound, if that is not positive.
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

// monotonicTime returns the latest time at which an account pays. With an earlier one the limiter would earn the time between twice.
// The caller holds mu.
func (l *RateLimit) monotonicTime(now time.Time) time.Time {
	if late := l.latestTime.Sub(now); late <= 0 || late >= time.Second { // or the clock was set back
		l.latestTime = now
	}
	return l.latestTime
}

// canSpend reports whether one more hedge may start. The caller holds mu.
func (l *RateLimit) canSpend(now time.Time) bool {
	return l == nil || l.limiter.TokensAt(l.monotonicTime(now)) >= 1
}

// spendTokens takes so many tokens; a negative number returns tokens. The caller holds mu.
func (l *RateLimit) spendTokens(now time.Time, hedges int) {
	if l != nil {
		l.limiter.AllowN(l.monotonicTime(now), hedges)
	}
}

// isHalfFull reports whether the limiter has half of the tokens that it can hold.
func (l *RateLimit) isHalfFull(now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.TokensAt(now) >= max(1, float64(l.limiter.Burst())/2)
}
