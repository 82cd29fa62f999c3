package observe

import "time"

// A LimiterSnapshot is the state of a hedge.Limiter at one time: the number of requests now, and counters since
// NewLimiter. The numbers are read one after another, so a request that changes its state meanwhile may be counted
// twice or not at all.
type LimiterSnapshot struct {
	Name  string `json:"name,omitempty"` // as set by hedge.WithName
	Limit int    `json:"limit"`          // maximum number of requests in handlers at the same time

	Working int64 `json:"working"` // requests in handlers now
	Waiting int64 `json:"waiting"` // requests in the queue now

	Worked  int64 `json:"worked"`  // requests that have reached a handler, including the requests counted in Working
	Left    int64 `json:"left"`    // requests that were cancelled in the queue, so that they never reached a handler
	Refused int64 `json:"refused"` // hedges that were rejected without queueing, because there were too many requests
}

// A LimiterResult reports how a request fared at a hedge.Limiter, and how long it waited. Observers receive it.
type LimiterResult struct {
	Outcome LimiterOutcome // whether the request reached a handler
	Waited  time.Duration  // time in the queue
}

// A LimiterOutcome says whether a request at a hedge.Limiter reached a handler ([LimiterWorked]), was cancelled in the
// queue ([LimiterLeft]), or was rejected ([LimiterRefused]).
type LimiterOutcome string

// The outcomes of requests at a hedge.Limiter.
const (
	LimiterWorked  LimiterOutcome = "worked"  // the request has a slot, and reaches the handler now
	LimiterLeft    LimiterOutcome = "left"    // the request was cancelled while it waited in the queue
	LimiterRefused LimiterOutcome = "refused" // the request is a hedge, and was rejected without queueing
)
