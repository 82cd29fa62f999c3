package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A HedgeRequest describes a hedge that asks for admission. The zero value describes a plain hedge.
type HedgeRequest struct {
	Cost         int  // tokens; 0: one
	OtherBackend bool // the hedge goes to another backend than the primary, whose slowness and pushback do not hold it back
}

// tokens returns the cost of the hedge.
func (r HedgeRequest) tokens() int64 { return int64(max(r.Cost, 1)) }

// An admission is a hedge that asks for admission, and the state of its key.
type admission struct {
	HedgeRequest
	now      time.Time
	deadline time.Time // of the call; zero: there is none
	schedule *Schedule // of the key; nil: the key is not hedged
}

// An admissionCheck finds a reason to deny a hedge. It has a file of its own.
type admissionCheck interface {
	// deny returns the reason why the hedge must not start; None if there is none. It changes nothing, and the caller holds Key.mu.
	deny(a admission) observe.Reason
}
