package policy

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// A HedgeRequest describes the hedge that a call wants to send, so that a [Key] can admit or deny it. The zero value
// describes a hedge that costs one token and goes to the same server as the primary.
type HedgeRequest struct {
	// Cost is the number of tokens that the hedge takes from the budget. 0 means one token.
	Cost int
	// OtherBackend is true if the hedge goes to a server other than that of the primary. An outage or pushback of the primary's
	// server does not deny it.
	OtherBackend bool
	// AfterFailure is true if the failure of another attempt starts the hedge. The win rate, by which the budget is reduced, does
	// not count it. [Call.AdmitRequest] and [Call.Withdraw] set it.
	AfterFailure bool
	// ExpectedLatency is the usual latency of the server to which the hedge goes. The deadline of the call is compared with it. 0
	// means that the median latency of the key applies.
	ExpectedLatency time.Duration
}

// tokens returns the cost of the hedge in tokens, at least 1.
func (r HedgeRequest) tokens() int64 { return int64(max(r.Cost, 1)) }

// An admission describes one hedge that asks for admission. It holds all data by which the checks allow or deny the hedge.
type admission struct {
	HedgeRequest
	now      time.Time // when the hedge would start
	deadline time.Time // deadline of the call; zero: the call has none
	schedule *Schedule // current schedule of the key; nil: calls of the key are not hedged
}

// An admissionCheck denies hedges for one reason, such as an outage or the deadline of the call. A hedge starts only if all
// checks of its key allow it.
type admissionCheck interface {
	// deny returns the reason why the hedge must not start, or None if the check allows the hedge. It has no side effects. The
	// caller must hold Key.mu.
	deny(a admission) observe.Reason
}
