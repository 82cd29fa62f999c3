package budget

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A RateLimit limits the number of hedges per second that several accounts send together. A nil RateLimit allows any number. It
// is safe for concurrent use.
type RateLimit struct {
	// mu guards the fields that follow. It is held while an account spends tokens, and must be locked before the mutex of a
	// bucket.
	mu         sync.Mutex
	limiter    *rate.Limiter // holds one token for each hedge that may be sent
	latestTime time.Time     // latest time that was passed to monotonicTime
}

// NewRateLimit returns a limit of perSecond hedges per second. If perSecond is not positive, it returns nil, which means no
// limit.
func NewRateLimit(perSecond float64) *RateLimit {
	if perSecond <= 0 {
		return nil
	}
	return &RateLimit{limiter: rate.NewLimiter(rate.Limit(min(perSecond, math.MaxFloat64)), int(unitsForBurst(perSecond)/unitsPerToken))} // rate.Inf is not +Inf
}

// lock locks mu, so that an account can check and spend tokens in one step. It does nothing if l is nil.
func (l *RateLimit) lock() {
	if l != nil {
		l.mu.Lock()
	}
}

// unlock unlocks mu. It does nothing if l is nil.
func (l *RateLimit) unlock() {
	if l != nil {
		l.mu.Unlock()
	}
}

// monotonicTime corrects the time now so that time does not go back between calls, because the limiter would then deposit
// tokens twice. It returns now, or the time of an earlier call if that is later.
//
// However, if now is at least one second before that time, the clock was set back, and monotonicTime returns now. The caller
// must hold mu.
func (l *RateLimit) monotonicTime(now time.Time) time.Time {
	if late := l.latestTime.Sub(now); late <= 0 || late >= time.Second { // or the clock was set back
		l.latestTime = now
	}
	return l.latestTime
}

// canSpend reports whether the limit allows one more hedge at the time now. The caller must hold mu.
func (l *RateLimit) canSpend(now time.Time) bool {
	return l == nil || l.limiter.TokensAt(l.monotonicTime(now)) >= 1
}

// spendTokens takes one token for each of the given number of hedges. A negative number puts tokens back. The caller must hold
// mu.
func (l *RateLimit) spendTokens(now time.Time, hedges int) {
	if l != nil {
		l.limiter.AllowN(l.monotonicTime(now), hedges)
	}
}

// isHalfFull reports whether the rate limit has at least half of the tokens that it can hold, and at least one. It is true
// if l is nil. The caller must not hold mu.
func (l *RateLimit) isHalfFull(now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.TokensAt(now) >= max(1, float64(l.limiter.Burst())/2)
}
