package audit

import (
	"math"

	"github.com/gohedge/hedge/observe"
)

const (
	// A verdict needs so many pairs and calls.
	minPairs = 4
	minCalls = 300

	somePairs = 8 // without a verdict are enough to say that no difference is found

	// The bound that the score must reach is Robbins' normal mixture ("Statistical Methods Related to the Law of the Iterated
	// Logarithm", 1970): luck reaches it with a probability of at most mayErr, however often one looks. We look at whole pairs,
	// from the fourth on, so it does in half of that: TestVerdictsAreAsSureAsTheySay prints how often. With mixture, the bound is
	// lowest for effects that a few pairs show. The trial after n others may err as seldom as mayErr / (2n+1)^2, which adds up to
	// mayErr * π²/8.
	mayErr  = 0.08
	mixture = 0.5
)

// A verdict is what an audit has found. Exports have its number.
type verdict int8

const (
	trying  verdict = iota // none yet: calls are hedged, but for dark slots
	helpful                // calls are hedged
	harmful                // calls are not hedged
	same                   // no difference was found: calls are hedged

	verdicts // their number
)

var words = [verdicts]observe.Verdict{trying: observe.AuditTrying, helpful: observe.AuditOn, harmful: observe.AuditOff, same: observe.AuditSame}

// decides reports whether a verdict says that hedging helps or harms.
func (v verdict) decides() bool { return v == helpful || v == harmful }

// evidence is what pairs say. The zero value is that of no pair.
type evidence struct {
	pairs   float64
	sum     float64 // of the pairs' differences: how many octaves slower the tail is with hedging
	squares float64 // of these
	calls   float64
	looks   float64 // pairs that were added, whatever was forgotten
	before  int     // trials before this one
}

func (e *evidence) add(d, calls float64) {
	e.pairs, e.sum, e.squares, e.calls, e.looks = e.pairs+1, e.sum+d, e.squares+d*d, e.calls+calls, e.looks+1
}

// scale forgets a part.
func (e *evidence) scale(f float64) {
	e.pairs, e.sum, e.squares, e.calls = e.pairs*f, e.sum*f, e.squares*f, e.calls*f
}

// score says how sure it is that hedging harms, as a standard normal deviate; it is
// negative if hedging helps. It is Student's t of the differences, by the approximation
// of Wallace ("Bounds on Normal Approximations to Student's and the Chi-Square
// Distributions", 1959).
func (e *evidence) score() float64 {
	n := e.pairs - 1
	if n < 1 || e.squares <= 0 {
		return 0
	}
	left := max(e.pairs-e.sum*e.sum/e.squares, 1e-9) // the sum's square is at most pairs times the squares
	return math.Copysign(min((8*n+1)/(8*n+3)*math.Sqrt(n*math.Log(e.pairs/left)), 8), e.sum)
}

// luck returns the probability that luck alone brings the score to where it is, whenever that is.
func (e *evidence) luck() float64 {
	if e.pairs < 2 {
		return 1
	}
	score, part := e.score(), float64(2*e.before+1)
	return min(math.Sqrt(1+e.looks/mixture)*math.Exp(-score*score/2/(1+mixture/e.pairs))*part*part, 1)
}

// decided returns the verdict if the pairs are enough for one.
func (e *evidence) decided() (verdict, bool) {
	switch {
	case e.pairs < minPairs || e.calls < minCalls || e.luck() > mayErr:
		return trying, false
	case e.sum > 0:
		return harmful, true
	default:
		return helpful, true
	}
}
