package policy

import "time"

// A Result holds the facts about a call that has ended.
type Result struct {
	Latency           time.Duration // from the start of the call to its end, without the time to set up a connection
	Waited            time.Duration // for which the caller waited since Begin; 0: as long as Latency
	Answered          bool          // the call succeeded; the latency of a failure is not learned
	LatencyUnknown    bool          // Latency is only an upper bound, which is not learned
	Abandoned         bool          // the caller canceled the call, or its deadline passed
	Canceled          bool          // the caller canceled the call
	Hedges            int           // number of hedges that were sent
	ReachedFirstDelay bool
	Learned           bool // the schedule has a slow marker
	Slow              bool // the call has reached the slow marker
	HedgeWon          bool
	PredictedHedgeEnd time.Duration // from the start to the predicted answer of a hedge that shadow mode did not send; 0: no answer is predicted
}

// isTimed reports whether Latency is the latency of a success, or a useful lower bound of it.
func (r *Result) isTimed() bool {
	return r.Answered && !r.LatencyUnknown || r.Abandoned && r.ReachedFirstDelay
}

// hasFailed reports whether the call failed by itself: it has no success, and its caller did not abandon it.
func (r *Result) hasFailed() bool { return !r.Answered && !r.Abandoned }
