package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	slowWeight = 1.0 / 16 // of a call in the share of slow ones, the first brake

	// The second brake: hedges that do not win spend less of the budget. They are judged at every
	// payRestore wins, which double the share, and at every payFired hedges, which halve it if fewer than payWins won.
	payFired   = 100
	payWins    = 2
	payRestore = 5

	pushWeight = 1.0 / 128 // of an answer in the share of those with pushback, the third brake

	// MaxInFlight bounds the hedges of one key in flight.
	MaxInFlight = 1000
)

// brakes stop the hedges of a key where they would do harm. [Key].mu guards them.
type brakes struct {
	brakeState

	fired int // hedges since scale was last judged
	won   int // of them

	exhausted bool            // the budget refused a hedge, and has not been half full since
	notices   *[topics]Notice // nil: nobody is told
}

// deny returns why no hedge of a call with the deadline may start now beside those in flight, or
// None. The plan may be nil. A hedge that goes elsewhere is no load for whoever is slow, or asks for less.
func (b *brakes) deny(now, deadline time.Time, p *Schedule, inFlight int64, elsewhere bool) observe.Reason {
	switch {
	case b.Slow > SlowLimit && !elsewhere:
		return observe.DeniedSlow
	case b.paused(now) && !elsewhere:
		return observe.DeniedPaused
	case !deadline.IsZero() && p != nil && deadline.Sub(now) < p.Median:
		return observe.DeniedDeadline
	case inFlight >= MaxInFlight:
		return observe.DeniedInFlight
	}
	return None
}

// reached counts a call that has reached the delay by which it counts as slow.
func (b *brakes) reached() { b.Slow += (1 - b.Slow) * slowWeight }

// refused says that a hedge which was fired was not sent.
func (b *brakes) refused() { b.fired = max(b.fired-1, 0) } // it may have been judged meanwhile

// ended learns from a call: whether it was answered, and whether it ended before it would have
// counted as slow.
func (b *brakes) ended(answered, fast bool) {
	if answered && b.Push > 0 {
		b.Push -= b.Push * pushWeight
		b.Pushed = b.Pushed && b.Push >= PushResume
	}
	if fast {
		b.Slow -= b.Slow * slowWeight
	}
	switch {
	case b.won >= payRestore:
		b.Scale, b.fired, b.won = min(1, 2*b.Scale), 0, 0
	case b.fired >= payFired:
		if b.won < payWins {
			b.Scale = max(minBudgetScale, b.Scale/2)
		}
		b.fired, b.won = 0, 0
	}
}

// pushBack counts an answer that asked for less, and if d is not 0, to wait so long.
func (b *brakes) pushBack(now time.Time, d time.Duration) {
	b.Push += (1 - b.Push) * pushWeight
	b.Pushed = b.Pushed || b.Push > PushStop
	if to := now.Add(min(d, maxPause)); d > 0 && to.After(b.PausedTo) {
		b.PausedTo = to
	}
}

// paused reports whether the server has asked for less.
func (b *brakes) paused(now time.Time) bool { return b.Pushed || now.Before(b.waits()) }

// waits returns until when the server has asked to wait; zero if it has not, or if
// too few of its answers push back.
func (b *brakes) waits() time.Time {
	if b.Push <= PushResume {
		return time.Time{}
	}
	return b.PausedTo
}

// forget forgets what was learned. Hedges in flight still are, and an exhausted budget stays exhausted.
func (b *brakes) forget() {
	b.brakeState, b.fired, b.won = brakeState{Scale: 1}, 0, 0
}

// changes returns the changes to report.
func (b *brakes) changes(now time.Time) (all []Change) {
	if b.notices == nil {
		b.notices = new([topics]Notice)
	}
	paused := b.paused(now)
	every := [topics]time.Duration{Pausing: ChangeEvery, Exhausting: BudgetEvery}
	for topic, bad := range [topics]bool{Pausing: paused || b.Slow > SlowLimit, Exhausting: b.exhausted} {
		dropped, report := b.notices[topic].Update(now, every[topic], bad)
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
		all = append(all, one)
	}
	return all
}
