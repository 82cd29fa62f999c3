package engine

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	// The first brake: if most calls reach the delay that was learned, it is an outage, not a tail.
	// Keep the limit above 0.7: that is the share of slow calls when one of three replicas pauses.
	slowWeight = 1.0 / 16
	SlowLimit  = 0.75 // no hedge starts while more of the calls are slow

	// The second brake: hedges that do not win spend less of the budget. They are judged at every
	// payRestore wins, which double the share, and at every payFired hedges, which halve it if fewer than payWins won.
	payFired   = 100
	payWins    = 2
	payRestore = 5
	payFloor   = 0.1 // of the budget is always spent

	// The third brake: if more than a few answers push back, the service has too much to do.
	pushWeight = 1.0 / 128
	PushStop   = 0.05             // no hedge starts from here on …
	PushResume = 0.025            // … until the share is below this
	maxPause   = 10 * time.Second // what a server may ask for beyond that

	// MaxInFlight bounds the hedges of one key in flight.
	MaxInFlight = 1000
)

// brakes stop the hedges of a key where they would do harm. [Key].mu guards them.
type brakes struct {
	slow float64 // moving average of "reached the learned delay"

	scale float64 // of the budget, in [payFloor, 1]
	fired int     // hedges since scale was last judged
	won   int     // of them

	push     float64   // moving average of "this answer pushed back"
	pushed   bool      // push exceeded PushStop, and has not been below PushResume since
	pausedTo time.Time // until then the server has asked to wait

	exhausted bool            // the budget refused a hedge, and has not been half full since
	notices   *[topics]Notice // nil: nobody is told
}

// deny returns why no hedge of a call with the deadline may start now beside those in flight, or
// None. The plan may be nil.
func (b *brakes) deny(now, deadline time.Time, p *Plan, inFlight int64) observe.Reason {
	switch {
	case b.slow > SlowLimit:
		return observe.DeniedSlow
	case b.paused(now):
		return observe.DeniedPaused
	case !deadline.IsZero() && p != nil && deadline.Sub(now) < p.Median:
		return observe.DeniedDeadline
	case inFlight >= MaxInFlight:
		return observe.DeniedInFlight
	}
	return None
}

// reached counts a call that has reached the delay by which it counts as slow.
func (b *brakes) reached() { b.slow += (1 - b.slow) * slowWeight }

// refused says that a hedge which was fired was not sent.
func (b *brakes) refused() { b.fired = max(b.fired-1, 0) } // it may have been judged meanwhile

// ended learns from a call: whether it was answered, and whether it ended before it would have
// counted as slow.
func (b *brakes) ended(answered, fast bool) {
	if answered && b.push > 0 {
		b.push -= b.push * pushWeight
		b.pushed = b.pushed && b.push >= PushResume
	}
	if fast {
		b.slow -= b.slow * slowWeight
	}
	switch {
	case b.won >= payRestore:
		b.scale, b.fired, b.won = min(1, 2*b.scale), 0, 0
	case b.fired >= payFired:
		if b.won < payWins {
			b.scale = max(payFloor, b.scale/2)
		}
		b.fired, b.won = 0, 0
	}
}

// pushBack counts an answer that asked for less, and if d is not 0, to wait so long.
func (b *brakes) pushBack(now time.Time, d time.Duration) {
	b.push += (1 - b.push) * pushWeight
	b.pushed = b.pushed || b.push > PushStop
	if to := now.Add(min(d, maxPause)); d > 0 && to.After(b.pausedTo) {
		b.pausedTo = to
	}
}

// paused reports whether the server has asked for less.
func (b *brakes) paused(now time.Time) bool { return b.pushed || now.Before(b.waits()) }

// waits returns until when the server has asked to wait; zero if it has not, or if
// too few of its answers push back.
func (b *brakes) waits() time.Time {
	if b.push <= PushResume {
		return time.Time{}
	}
	return b.pausedTo
}

// resume forgets that the server asked for less.
func (b *brakes) resume() { b.push, b.pushed, b.pausedTo = 0, false, time.Time{} }

// forget forgets what was learned. Hedges in flight still are, and an exhausted budget stays exhausted.
func (b *brakes) forget() {
	b.slow, b.scale, b.fired, b.won = 0, 1, 0, 0
	b.resume()
}

// changes returns the changes to report.
func (b *brakes) changes(now time.Time) (all [topics]Change, n int) {
	if b.notices == nil {
		b.notices = new([topics]Notice)
	}
	paused := b.paused(now)
	for topic, bad := range [topics]bool{Pausing: paused || b.slow > SlowLimit, Exhausting: b.exhausted} {
		dropped, report := b.notices[topic].Update(now, bad)
		if !report {
			continue
		}
		one := Change{Topic: Topic(topic), Bad: bad, Dropped: dropped}
		if one.Topic == Pausing && bad {
			if one.Reason = observe.DeniedSlow; paused {
				one.Reason = observe.DeniedPaused
			}
			if to := b.waits(); now.Before(to) {
				one.Until = to
			}
		}
		all[n] = one
		n++
	}
	return all, n
}
