package policy

import "time"

// A Result holds the facts about an ended call that [Key.RecordCall] learns from.
type Result struct {
	Latency           time.Duration // from the start of the call to its end, without the time in which the connection was set up
	Waited            time.Duration // time that the caller waited since Begin; 0: the same as Latency
	Answered          bool          // the call succeeded; latencies of failed calls are not learned
	LatencyUnknown    bool          // Latency is only an upper bound and is not learned
	Abandoned         bool          // the caller cancelled the call, or its deadline passed
	Canceled          bool          // the caller cancelled the call
	Hedges            int           // number of hedges that were sent
	ReachedFirstDelay bool          // the call reached its first hedge delay, even if no hedge was sent
	HasSlowMarker     bool          // the schedule of the call had a slow marker
	Slow              bool          // the call reached the slow marker of its schedule
	HedgeWon          bool          // a hedge won and made the call faster
	WonAfterFailure   bool          // the failure of another attempt has started the hedge that won
	// PredictedHedgeEnd is the time from the start of the call to the predicted response to a hedge that shadow mode did not
	// send. It is 0 if no response is predicted.
	PredictedHedgeEnd time.Duration
}

// shouldLearnLatency reports whether the key should learn the field Latency: the call succeeded, or it was abandoned late enough that
// Latency is a useful lower bound.
func (r *Result) shouldLearnLatency() bool {
	return r.Answered && !r.LatencyUnknown || r.Abandoned && r.ReachedFirstDelay
}

// hasFailed reports whether the call failed by itself. It is false if the call succeeded or the caller abandoned it.
func (r *Result) hasFailed() bool { return !r.Answered && !r.Abandoned }
