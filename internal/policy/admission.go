package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A HedgeRequest describes a hedge that needs admission. The zero value describes a hedge that costs one token and goes to the server of
// the primary.
type HedgeRequest struct {
	Cost         int  // tokens; 0: one
	OtherBackend bool // the hedge goes to another server than the primary, so outage and pushback of the primary's server do not deny it
}

// tokens returns the cost of the hedge in tokens, at least 1.
func (r HedgeRequest) tokens() int64 { return int64(max(r.Cost, 1)) }

// An admission is a request for a hedge together with the data that admission checks need.
type admission struct {
	HedgeRequest
	now      time.Time
	deadline time.Time // of the call; zero: there is none
	schedule *Schedule // of the key; nil: the key is not hedged
}

// An admissionCheck denies hedges for one reason.
type admissionCheck interface {
	// deny returns the reason why the hedge must not start; None if it may start. It has no side effects. The caller holds Key.mu.
	deny(a admission) observe.Reason
}
