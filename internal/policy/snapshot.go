package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Snapshot is a copy of the state of a key at one point in time, for metrics and debug pages.
type Snapshot struct {
	Name            Name
	Requests        int64           // number of calls since the key was made
	Counters                        // Denied is never nil; it has no entries for reasons that never applied
	Samples         int             // number of latencies in the window
	Delays          []time.Duration // hedge delays of the current schedule; nil: calls are not hedged
	P50, P90        time.Duration   // percentiles of the latencies that callers observed; 0: unknown
	P99             time.Duration
	Tokens          float64       // tokens that are available for hedges
	BudgetScale     float64       // factor of the budget while few hedges win, in [0.1, 1]
	SlowShare       float64       // share of the last calls that were slow
	PushbackShare   float64       // share of the last responses with pushback
	PushbackStopped bool          // hedges are denied because PushbackShare was too large
	PausedUntil     time.Time     // end of the pause that the server asked for; zero: it asked for none
	Stall           time.Duration // length from which a pause of a response body is a stall, see [Key.StallThreshold]
	Audit           observe.Audit // results of the audit of the host
	Extension       any           // value that the adapter stored in AdapterState; nil: none
}

// Snapshot returns a copy of the current state of the key.
func (k *Key) Snapshot() Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	window, b := k.observedWindow(), &k.safetyChecks
	v := Snapshot{
		Name: k.Name, Requests: k.totalRequests(), Counters: k.counters, Samples: window.Len(), Tokens: k.account.Tokens(),
		BudgetScale: b.winRate.scale, SlowShare: b.outage.slowShare, PushbackShare: b.pushback.share, PushbackStopped: b.pushback.stopped, PausedUntil: b.pushback.pausedUntil(),
		Stall: k.stallThreshold(), Extension: k.Extension.Load(),
	}
	if v.Denied = maps.Clone(k.counters.Denied); v.Denied == nil {
		v.Denied = make(map[observe.Reason]int64)
	}
	v.Unresumed = maps.Clone(k.counters.Unresumed)
	v.Audit = k.experiment.report()
	if s := k.schedule.Load(); s != nil {
		v.Delays = slices.Clone(s.hedgeDelays())
	}
	v.P50, _ = window.Quantile(0.50)
	v.P90, _ = window.Quantile(0.90)
	v.P99, _ = window.Quantile(0.99)
	return v
}

// State returns the current state of the key for observers. The adapter must set Endpoints, and may change Delay.
func (k *Key) State() observe.KeyState {
	s := observe.KeyState{KeyInfo: k.Info, Tokens: k.Tokens(), Share: k.account.EffectiveShare(k.engine.Config().Share)}
	s.Audit = k.experiment.report()
	if delays := k.Schedule().hedgeDelays(); len(delays) > 0 {
		s.Delay = delays[0]
	}
	return s
}

// Snapshots returns a snapshot of every key, sorted by host and route.
func (e *Engine) Snapshots() (all []Snapshot) {
	keys := slices.SortedFunc(e.AllKeys(), func(a, b *Key) int {
		return cmp.Or(cmp.Compare(a.Name.Host, b.Name.Host), cmp.Compare(a.Name.Route, b.Name.Route))
	})
	for _, k := range keys {
		all = append(all, k.Snapshot())
	}
	return all
}
