package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	// PushStop is the share of answers with pushback above which hedging pauses. It pauses until the share is below PushResume.
	PushStop   = 0.05
	PushResume = 0.025

	pushWeight = 1.0 / 128        // weight of one answer in the moving average of answers with pushback
	maxPause   = 10 * time.Second // longest pause that one answer can cause
)

// A pushbackCheck denies hedges to a server that answers with pushback. It denies them while the share of these answers is high, and during
// a pause that an answer asks for.
type pushbackCheck struct {
	share     float64   // moving average of the answers with pushback
	stopped   bool      // share exceeded PushStop, and has not been below PushResume since
	waitUntil time.Time // latest end of a pause that an answer asked for; zero: there was none
}

func (c *pushbackCheck) deny(a admission) observe.Reason {
	if c.isPaused(a.now) && !a.OtherBackend {
		return observe.DeniedPaused
	}
	return None
}

// recordPushback counts an answer with pushback, which asks for a pause of d; 0 if it names no time.
func (c *pushbackCheck) recordPushback(now time.Time, d time.Duration) {
	c.share += (1 - c.share) * pushWeight
	c.stopped = c.stopped || c.share > PushStop
	if until := now.Add(min(d, maxPause)); d > 0 && until.After(c.waitUntil) {
		c.waitUntil = until
	}
}

// record counts an answer without pushback.
func (c *pushbackCheck) record(r *Result) {
	if r.Answered && c.share > 0 {
		c.share -= c.share * pushWeight
		c.stopped = c.stopped && c.share >= PushResume
	}
}

// isPaused reports whether hedging pauses at the given time.
func (c *pushbackCheck) isPaused(now time.Time) bool { return c.stopped || now.Before(c.pausedUntil()) }

// pausedUntil returns the end of the pause that an answer asked for. It is zero if no answer asked for a pause, or if so few answers have
// pushback that the pause does not apply.
func (c *pushbackCheck) pausedUntil() time.Time {
	if c.share <= PushResume {
		return time.Time{}
	}
	return c.waitUntil
}
