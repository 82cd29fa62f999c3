package observe

import "time"

// A LimiterSnapshot has the present numbers of a hedge.Limiter, and its counters since it was made. Each
// number is exact; as they are read one after another, a request that moves on meanwhile may
// be counted in two of them, or in none.
type LimiterSnapshot struct {
	Name  string `json:"name,omitempty"` // see hedge.WithName
	Limit int    `json:"limit"`          // requests that are worked on at a time

	Working int64 `json:"working"` // requests now with the handler
	Waiting int64 `json:"waiting"` // requests now in the queue for it

	Worked  int64 `json:"worked"`  // requests that reached the handler, including the requests now with it
	Left    int64 `json:"left"`    // requests whose caller went away while they waited; they never reached the handler
	Refused int64 `json:"refused"` // hedges that were turned away, because too many requests were there
}

// A LimiterResult is the outcome of a request at a hedge.Limiter.
type LimiterResult struct {
	Outcome LimiterOutcome
	Waited  time.Duration // in the queue, until then
}

// A LimiterOutcome says whether a request reached the handler behind a hedge.Limiter.
type LimiterOutcome string

// The outcomes of requests that came to a hedge.Limiter.
const (
	LimiterWorked  LimiterOutcome = "worked"  // it reached the handler, just now
	LimiterLeft    LimiterOutcome = "left"    // its caller went away while it waited
	LimiterRefused LimiterOutcome = "refused" // it was a hedge, and was turned away at once
)
