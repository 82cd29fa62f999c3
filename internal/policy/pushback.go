package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	// PushStop is the share of answers with pushback above which no hedge starts until the share is below PushResume.
	PushStop   = 0.05
	PushResume = 0.025

	pushWeight = 1.0 / 128        // of an answer in the share of answers with pushback
	maxPause   = 10 * time.Second // for which one answer can stop hedges
)

// A pushbackCheck denies hedges to a backend whose answers ask for less load.
type pushbackCheck struct {
	share     float64   // moving average of the answers with pushback
	stopped   bool      // share exceeded PushStop, and has not been below PushResume since
	waitUntil time.Time // until when an answer asked to wait
}

func (c *pushbackCheck) deny(a admission) observe.Reason {
	if c.isPaused(a.now) && !a.OtherBackend {
		return observe.DeniedPaused
	}
	return None
}

// recordPushback counts an answer with pushback, which asked to wait for d; 0: it named no time.
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

// isPaused reports whether hedges are to wait.
func (c *pushbackCheck) isPaused(now time.Time) bool { return c.stopped || now.Before(c.pausedUntil()) }

// pausedUntil returns until when an answer asked to wait; zero if none did, or too few of the answers push back.
func (c *pushbackCheck) pausedUntil() time.Time {
	if c.share <= PushResume {
		return time.Time{}
	}
	return c.waitUntil
}
