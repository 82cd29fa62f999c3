package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Change describes a condition of a key that has begun or ended, for example a pause of hedging. Adapters write it to the
// log.
type Change struct {
	Kind ChangeKind // condition that has begun or ended
	// Bad is true if the condition begins, and false if it ends.
	Bad      bool
	Reason   observe.Reason // reason of a pause: DeniedSlow or DeniedPaused
	Until    time.Time      // end of the pause, if the server has named a time; otherwise zero
	Audit    observe.Audit  // results of the audit, if Kind is KindVerdict
	Dropped  int            // number of changes of this kind that were not reported since the last report
	Endpoint string         // the ejected or restored endpoint, if Kind is KindEndpoint
}

// A ChangeKind says which condition of a key has begun or ended, for example an outage or a pause of hedging.
type ChangeKind int

// Kinds of changes. Reports of KindPause and KindBudget are throttled. Changes of all other kinds are reported at once.
const (
	KindPause      ChangeKind = iota // hedging is paused
	KindBudget                       // the budget is exhausted; this ends when the budget is half full
	throttledKinds                   // number of kinds that are throttled

	KindVerdict = throttledKinds // the verdict of an audit has changed
	// KindEndpoint: an endpoint is ejected, because it fails or because it is slower than another endpoint. In the second case,
	// Reason is DeniedSlow.
	KindEndpoint = throttledKinds + 1
)

// Minimum times between two reports of the same state. The time for the budget is long, because the budget of a busy key is
// often exhausted and this needs no action.
const (
	MinChangeInterval = 10 * time.Second // for KindPause
	MinBudgetInterval = 10 * time.Minute // for KindBudget
)

// A ReportThrottle prevents that a condition which begins and ends often, such as an exhausted budget, is reported too
// often. The zero value is ready for a condition that has not begun. A ReportThrottle must not be used concurrently.
type ReportThrottle struct {
	// bad is the current state, and reported is the last reported state: true while the condition lasts.
	bad, reported bool
	changes       int          // number of changes since the last report
	last          [2]time.Time // time of the last report of the end (index 0) and of the start (index 1); zero: never reported
}

// Update stores the current state of the condition: bad is true while it lasts. If Update returns report == true, the caller
// must report this state now. The result dropped is then the number of changes since the last report that were never
// reported.
//
// A new state is reported at once, unless the last report of the same state is more recent than the given interval. In that
// case the report is delayed to a later call, and is dropped if the state changes back before that.
func (n *ReportThrottle) Update(now time.Time, interval time.Duration, bad bool) (dropped int, report bool) {
	if bad != n.bad {
		n.bad = bad
		n.changes++
	}
	last := &n.last[0]
	if bad {
		last = &n.last[1]
	}
	if bad == n.reported || !last.IsZero() && now.Sub(*last) < interval {
		return 0, false
	}
	dropped = n.changes - 1
	n.reported, n.changes, *last = bad, 0, now
	return dropped, true
}
