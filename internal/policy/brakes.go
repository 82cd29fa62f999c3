package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// brakes deny hedges of a key where hedges would do harm: in an outage, after pushback, and while few hedges win. They hold the state of
// these three checks. [Key].mu guards them.
type brakes struct {
	outage   outageCheck
	pushback pushbackCheck
	winRate  winRateThrottle

	budgetExhausted bool                         // the budget did not pay for a hedge, and has not been half full since
	throttles       *[changeKinds]ReportThrottle // nil: no change was reported
}

// resetResults resets the state that results of calls have changed. An exhausted budget stays exhausted.
func (b *brakes) resetResults() {
	b.winRate = winRateThrottle{}
	b.setState(&brakeState{scale: 1})
}

// copyState returns the part of the state that is kept when the key is evicted.
func (b *brakes) copyState() brakeState { return brakeState{b.outage, b.pushback, b.winRate.scale} }

func (b *brakes) setState(s *brakeState) {
	b.outage, b.pushback, b.winRate.scale = s.outage, s.pushback, s.scale
}

// takeChanges returns the changes that are due to be reported, and marks them as reported.
func (b *brakes) takeChanges(now time.Time) (all []Change) {
	if b.throttles == nil {
		b.throttles = new([changeKinds]ReportThrottle)
	}
	isPaused := b.pushback.isPaused(now)
	every := [changeKinds]time.Duration{KindPause: MinChangeInterval, KindBudget: MinBudgetInterval}
	for topic, bad := range [changeKinds]bool{KindPause: isPaused || b.outage.isOutage(), KindBudget: b.budgetExhausted} {
		dropped, report := b.throttles[topic].Update(now, every[topic], bad)
		if !report {
			continue
		}
		change := Change{Kind: ChangeKind(topic), Bad: bad, Dropped: dropped}
		if change.Kind == KindPause && bad {
			if change.Reason = observe.DeniedSlow; isPaused {
				change.Reason = observe.DeniedPaused
			}
			if until := b.pushback.pausedUntil(); now.Before(until) {
				change.Until = until
			}
		}
		all = append(all, change)
	}
	return all
}
