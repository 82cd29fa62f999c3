package engine

// A Reason is why a hedge is not sent, or why no hedge of a call can be.
type Reason int

// The reasons. Their words, see [Reason.String], are what users read.
const (
	None        Reason = iota // a hedge may start
	Budget                    // the bucket or the ceiling is empty
	Slow                      // most calls are slow
	Paused                    // the server asked for less
	Deadline                  // the call will end before a hedge could answer
	InFlight                  // too many hedges are in flight
	NotReady                  // no connection could carry it, or no copy could be made
	SameBackend               // it would have gone to the primary's backend
	Shadow                    // it would have started, but hedges are only counted
	Audited                   // hedging rests to be measured, or was measured to harm
	Warming                   // too little is known
	Disabled                  // hedging is switched off, or the settings allow none
	Method                    // nothing says that the call is safe to repeat
	Nested                    // the call is made for a hedge
	Body                      // the call cannot be sent twice

	Reasons // their number
)

var words = [Reasons]string{
	None: "", Budget: "budget", Slow: "slow", Paused: "paused", Deadline: "deadline", InFlight: "in-flight", NotReady: "not-ready",
	SameBackend: "same-backend", Shadow: "shadow", Audited: "audit", Warming: "warming", Disabled: "disabled", Method: "method", Nested: "nested", Body: "body",
}

// String returns the word for the reason; none for None.
func (r Reason) String() string { return words[r] }
