package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// safetyChecks are the safety checks of a key: they deny hedges in an outage, after pushback, and while few hedges win. [Key].mu
// guards them.
type safetyChecks struct {
	outage   outageCheck
	pushback pushbackCheck
	winRate  winRateThrottle

	// budgetExhausted is set when the budget cannot pay for a hedge. It is cleared when the budget is at least half full.
	budgetExhausted bool
	// throttles limits how often changes are reported, indexed by ChangeKind. It is nil until takeChanges is first called.
	throttles *[throttledKinds]ReportThrottle
}

// resetResults resets the outage check, the pushback check and the budget scale to the state of a new key. It does not change
// budgetExhausted.
func (b *safetyChecks) resetResults() {
	b.winRate = winRateThrottle{}
	b.setState(&safetyState{scale: 1})
}

// copyState returns a copy of the state that outlives the key: the outage check, the pushback check and the budget scale.
func (b *safetyChecks) copyState() safetyState {
	return safetyState{b.outage, b.pushback, b.winRate.scale}
}

// setState replaces the outage check, the pushback check and the budget scale by the values in s. They come from an evicted
// key with the same name, or from an import.
func (b *safetyChecks) setState(s *safetyState) {
	b.outage, b.pushback, b.winRate.scale = s.outage, s.pushback, s.scale
}

// takeChanges returns the changes that must be reported now: pauses of hedging and exhausted budgets that have begun or
// ended. It marks them as reported.
func (b *safetyChecks) takeChanges(now time.Time) (all []Change) {
	if b.throttles == nil {
		b.throttles = new([throttledKinds]ReportThrottle)
	}
	isPaused := b.pushback.isPaused(now)
	every := [throttledKinds]time.Duration{KindPause: MinChangeInterval, KindBudget: MinBudgetInterval}
	for topic, bad := range [throttledKinds]bool{KindPause: isPaused || b.outage.isOutage(), KindBudget: b.budgetExhausted} {
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
