package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	// PushStop is the share of responses with pushback above which hedges are denied. Hedges are allowed again when the share
	// is below PushResume.
	PushStop   = 0.05
	PushResume = 0.025

	pushWeight = 1.0 / 128        // weight of one response in the moving average of responses with pushback, about the last 128
	maxPause   = 10 * time.Second // longest pause that one response can ask for
)

// A pushbackCheck denies hedges to a server that asks for less load. It denies them while the share of responses with pushback
// is high, and during a pause that a response has asked for. Hedges to a server other than that of the primary are not denied.
type pushbackCheck struct {
	share     float64   // moving average of the share of responses with pushback
	stopped   bool      // share exceeded PushStop, and has not been below PushResume since
	waitUntil time.Time // latest end of a pause that a response asked for; zero: no response asked for a pause
}

// deny implements [admissionCheck]. It denies hedges while they are paused, except hedges to another server.
func (c *pushbackCheck) deny(a admission) observe.Reason {
	if c.isPaused(a.now) && !a.OtherBackend {
		return observe.DeniedPaused
	}
	return None
}

// recordPushback counts a response with pushback. d is the pause that the response asks for, or 0 if it names no time. The
// pause is limited to maxPause.
func (c *pushbackCheck) recordPushback(now time.Time, d time.Duration) {
	c.share += (1 - c.share) * pushWeight
	c.stopped = c.stopped || c.share > PushStop
	if until := now.Add(min(d, maxPause)); d > 0 && until.After(c.waitUntil) {
		c.waitUntil = until
	}
}

// record counts a response without pushback, which lowers the share of responses with pushback. It ignores failed calls.
func (c *pushbackCheck) record(r *Result) {
	if r.Answered && c.share > 0 {
		c.share -= c.share * pushWeight
		c.stopped = c.stopped && c.share >= PushResume
	}
}

// isPaused reports whether hedges are denied at the time now, because of a pause or because the share of responses with
// pushback is high.
func (c *pushbackCheck) isPaused(now time.Time) bool { return c.stopped || now.Before(c.pausedUntil()) }

// pausedUntil returns the end of the latest pause that a response has asked for, or the zero time if no response asked for a
// pause.
//
// It also returns the zero time while the share of responses with pushback is at most PushResume. So a single response does
// not pause hedging.
func (c *pushbackCheck) pausedUntil() time.Time {
	if c.share <= PushResume {
		return time.Time{}
	}
	return c.waitUntil
}
