package policy

import "time"

// A Result is how a call ended.
type Result struct {
	Latency           time.Duration // for the caller, without the time to set up a connection
	Waited            time.Duration // by the caller, since Begin; 0: Latency
	Answered          bool          // by a success; a failure teaches nothing about latency
	LatencyUnknown    bool          // Latency is an upper bound, which teaches nothing either
	Abandoned         bool          // by the caller, or by its deadline
	Canceled          bool          // by the caller
	Hedges            int           // that were sent
	ReachedFirstDelay bool
	Learned           bool // there was a delay by which the call would count as slow
	Slow              bool // the call has reached that delay
	HedgeWon          bool
	PredictedHedgeEnd time.Duration // when the first of the hedges that shadow mode did not send would have answered; 0: none would
}

// isTimed reports whether the latency is known, or a sure lower bound of it is.
func (r *Result) isTimed() bool {
	return r.Answered && !r.LatencyUnknown || r.Abandoned && r.ReachedFirstDelay
}

// hasFailed reports whether the call ended by itself without a success.
func (r *Result) hasFailed() bool { return !r.Answered && !r.Abandoned }
