package observe

import "time"

// A LimiterSnapshot is the state of a hedge.Limiter at one time: the current numbers, and counters since it was made.
// The numbers are read one after another, so a request that changes its state meanwhile may be counted twice or not at
// all.
type LimiterSnapshot struct {
	Name  string `json:"name,omitempty"` // as set by hedge.WithName
	Limit int    `json:"limit"`          // maximum number of requests in the handler at the same time

	Working int64 `json:"working"` // requests in the handler now
	Waiting int64 `json:"waiting"` // requests in the queue now

	Worked  int64 `json:"worked"`  // requests that have reached the handler, including those in Working
	Left    int64 `json:"left"`    // requests whose caller went away while they waited, so that they never reached the handler
	Refused int64 `json:"refused"` // hedges that were refused because of too many requests
}

// A LimiterResult is the outcome of a request at a hedge.Limiter and the time that it waited.
type LimiterResult struct {
	Outcome LimiterOutcome
	Waited  time.Duration // time in the queue
}

// A LimiterOutcome is the outcome of a request at a hedge.Limiter: [LimiterWorked], [LimiterLeft] or [LimiterRefused].
type LimiterOutcome string

// The outcomes of requests at a hedge.Limiter.
const (
	LimiterWorked  LimiterOutcome = "worked"  // the request reaches the handler now
	LimiterLeft    LimiterOutcome = "left"    // the caller went away while the request waited
	LimiterRefused LimiterOutcome = "refused" // the request is a hedge, and was refused without waiting
)
