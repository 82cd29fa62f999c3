package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Snapshot is a copy of the state of a key at one moment.
type Snapshot struct {
	Name            Name
	Requests        int64
	Counters        // Denied is not nil; reasons that never applied are missing
	Samples         int
	Delays          []time.Duration
	P50, P90        time.Duration
	P99             time.Duration
	Tokens          float64
	BudgetScale     float64
	SlowShare       float64
	PushbackShare   float64       // share of the last answers with pushback
	PushbackStopped bool          // PushbackShare is too large for hedges
	PausedUntil     time.Time     // until then the server asked to wait; zero: it did not
	Stall           time.Duration // see [Key.Stall]
	Audit           observe.Audit // of the host
	Extension       any           // the adapter's; nil: there is none
}

// Snapshot returns the present state of the key.
func (k *Key) Snapshot() Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	window, b := k.observedWindow(), &k.brakes
	v := Snapshot{
		Name: k.Name, Requests: k.totalRequests(), Counters: k.counters, Samples: window.Len(), Tokens: k.account.Tokens(),
		BudgetScale: b.winRate.scale, SlowShare: b.outage.slowShare, PushbackShare: b.pushback.share, PushbackStopped: b.pushback.stopped, PausedUntil: b.pushback.pausedUntil(),
		Stall: k.stallThreshold(), Extension: k.Extension.Load(),
	}
	if v.Denied = maps.Clone(k.counters.Denied); v.Denied == nil {
		v.Denied = make(map[observe.Reason]int64)
	}
	v.Unresumed = maps.Clone(k.counters.Unresumed)
	if k.experiment.isAudited() {
		v.Audit = k.experiment.Report()
	}
	if s := k.schedule.Load(); s != nil {
		v.Delays = slices.Clone(s.hedgeDelays())
	}
	v.P50, _ = window.Quantile(0.50)
	v.P90, _ = window.Quantile(0.90)
	v.P99, _ = window.Quantile(0.99)
	return v
}

// Snapshots returns the state of every key, sorted by name.
func (e *Engine) Snapshots() []Snapshot {
	var all []Snapshot
	for k := range e.allKeys() {
		all = append(all, k.Snapshot())
	}
	slices.SortFunc(all, func(a, b Snapshot) int {
		return cmp.Or(cmp.Compare(a.Name.Host, b.Name.Host), cmp.Compare(a.Name.Route, b.Name.Route))
	})
	return all
}
