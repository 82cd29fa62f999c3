package audit

import (
	"math"

	"github.com/gohedge/hedge/observe"
)

const (
	// A verdict needs so many pairs and calls, and a score that luck alone exceeds, in the one direction
	// or the other, in 2 % of cases with fewer than somePairs, and in 5 % from there on.
	minPairs   = 3
	minCalls   = 300
	minScore   = 2.33
	somePairs  = 8
	laterScore = 2
)

// A verdict is what an audit has found. Exports have its number.
type verdict int8

const (
	trying  verdict = iota // none yet: calls are hedged, but for dark slots
	helpful                // calls are hedged
	harmful                // calls are not hedged

	verdicts // their number
)

var words = [verdicts]observe.Verdict{trying: observe.AuditTrying, helpful: observe.AuditOn, harmful: observe.AuditOff}

// evidence is what pairs say. The zero value is that of no pair.
type evidence struct {
	pairs   float64
	sum     float64 // of the pairs' differences: how many octaves slower the tail is with hedging
	squares float64 // of these
	calls   float64
}

func (e *evidence) add(d, calls float64) {
	e.pairs, e.sum, e.squares, e.calls = e.pairs+1, e.sum+d, e.squares+d*d, e.calls+calls
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

// decided returns the verdict if the pairs are enough for one. If there must be one, the sign of
// somePairs is enough.
func (e *evidence) decided(must bool) (verdict, bool) {
	score := e.score()
	least := minScore
	if e.pairs >= somePairs {
		least = laterScore
	}
	sure := e.pairs >= minPairs && e.calls >= minCalls && math.Abs(score) >= least
	switch {
	case !sure && !(must && e.pairs >= somePairs):
		return trying, false
	case score > 0:
		return harmful, true
	default:
		return helpful, true
	}
}
