package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Change is a change of a key's state.
type Change struct {
	Kind     ChangeKind
	Bad      bool           // hedging is paused, or the budget is exhausted; false: no longer
	Reason   observe.Reason // reason for which hedging is paused: DeniedSlow or DeniedPaused
	Until    time.Time      // end of the pause, if the server has named a time
	Audit    observe.Audit  // result of the audit, if Kind is KindVerdict
	Dropped  int            // number of changes of this kind that were not reported since the last report
	Endpoint string         // endpoint that is ejected or restored, if Kind is KindEndpoint
}

// A ChangeKind is the kind of state that changed.
type ChangeKind int

// The kinds.
const (
	KindPause  ChangeKind = iota // hedging pauses, and resumes
	KindBudget                   // the budget is exhausted, and is at least half full again
	changeKinds

	KindVerdict  = changeKinds     // a verdict changes; it is reported at once
	KindEndpoint = changeKinds + 1 // an endpoint is ejected, because it fails or, if Reason is DeniedSlow, is slower than another, and is restored
)

// The least times between two equal reports. A busy budget is exhausted and refilled all the time, which needs no action.
const (
	MinChangeInterval = 10 * time.Second
	MinBudgetInterval = 10 * time.Minute
)

// A ReportThrottle decides when a state that is good or bad, such as an exhausted budget, is reported. It holds the present state and the last one reported. The
// zero value is good. It is not safe for concurrent use.
type ReportThrottle struct {
	bad, reported bool
	changes       int          // since the last that was reported
	last          [2]time.Time // when it was reported to be good, and bad
}

// Update stores the present state, and returns whether to report it now. A change sooner than every after the last equal report is reported
// later, if it lasts. Dropped is the number of changes since the last report that were not reported.
func (n *ReportThrottle) Update(now time.Time, every time.Duration, bad bool) (dropped int, report bool) {
	if bad != n.bad {
		n.bad = bad
		n.changes++
	}
	last := &n.last[0]
	if bad {
		last = &n.last[1]
	}
	if bad == n.reported || !last.IsZero() && now.Sub(*last) < every {
		return 0, false
	}
	dropped = n.changes - 1
	n.reported, n.changes, *last = bad, 0, now
	return dropped, true
}
