package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Change reports that a condition of a key has begun or ended.
type Change struct {
	Kind     ChangeKind
	Bad      bool           // true if the condition begins, such as a pause of hedging; false if it ends
	Reason   observe.Reason // reason of a pause: DeniedSlow or DeniedPaused
	Until    time.Time      // end of the pause, if the server has named a time; otherwise zero
	Audit    observe.Audit  // results of the audit, if Kind is KindVerdict
	Dropped  int            // number of changes of this kind that were not reported since the last report
	Endpoint string         // the ejected or restored endpoint, if Kind is KindEndpoint
}

// A ChangeKind is the kind of a condition that begins or ends.
type ChangeKind int

// The kinds. Changes of the kinds from KindVerdict on are reported at once.
const (
	KindPause  ChangeKind = iota // hedging is paused
	KindBudget                   // the budget is exhausted; this ends when the budget is half full
	changeKinds

	KindVerdict  = changeKinds     // the verdict of an audit has changed
	KindEndpoint = changeKinds + 1 // an endpoint is ejected, because it fails or, if Reason is DeniedSlow, is slower than another endpoint
)

// Minimum times between two equal reports. That of the budget is long, because a busy budget is often exhausted and needs no action.
const (
	MinChangeInterval = 10 * time.Second
	MinBudgetInterval = 10 * time.Minute
)

// A ReportThrottle limits how often the begin and the end of a condition, such as an exhausted budget, are reported. It holds the current
// state and the last reported state. The zero value is for a condition that has not begun. It is not safe for concurrent use.
type ReportThrottle struct {
	bad, reported bool
	changes       int          // number of changes since the last report
	last          [2]time.Time // times of the last reports of its end, and of its begin
}

// Update stores the current state, and reports whether to report it now. It delays a report until the time every has passed since the last
// equal report, and drops it if the state changes back before. The number of dropped changes since the last report is returned as well.
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
