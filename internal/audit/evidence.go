package audit

import (
	"math"

	"github.com/gohedge/hedge/observe"
)

const (
	// maxErrorProbability is the maximum probability that any verdict of the audit is false, over all pairs and trials. Trial k
	// may use the part 6 / (π²k²) of it, so that the parts of all trials add up to 1.
	maxErrorProbability = 0.03

	maxStake = 0.95 // maximum share of its wealth that a bettor stakes on one pair
)

// Each side has three bettors, whose stakes grow with the difference. The first one detects small differences in most pairs, and
// the second one large differences in most pairs. The third one, whose stake grows with the square, detects large differences in a
// few pairs, from rare stalls and failures, which many small differences of the other sign would hide.
const (
	bettors        = 3
	boldScale      = 0.4 // difference in octaves from which the first bettor stakes maxStake
	cautiousScale  = 2.0 // the same for the second bettor
	quadraticScale = 4.0 // the same for the third bettor
)

// evidence accumulates the compared pairs of one trial. It is a sequential test by betting: one side bets that hedging helps,
// the other side that it harms. Both sides bet on the sign of each pair's difference, and stake more on a larger difference.
//
// If hedging has no effect, the bets are fair, because a hash chooses the control slot. Then the probability that a side ever
// reaches n times its initial wealth is at most 1/n (Ville's inequality; Howard, Ramdas et al., "Time-uniform, nonparametric,
// nonasymptotic confidence sequences", 2021).
type evidence struct {
	number    int   // number of the trial, from 1
	startedAt int64 // start of the trial in nanoseconds of the engine's clock; 0: no call has begun yet
	slowPairs int   // number of pairs that were not added, because their calls took too long for a slot
	pairs     int   // number of pairs that were added
	// wealth is the natural logarithm of each bettor's wealth, by side (0: helps, 1: harms). 0 is the initial wealth.
	wealth [2][bettors]float64
}

// addPair adds the result of a compared pair of slots. The argument d is the difference between the latencies of the slowest
// calls without and with hedging, in octaves. The value 1 means twice as slow without hedging, and a negative value means
// faster.
func (e *evidence) addPair(d float64) {
	e.pairs++
	quadratic := d / quadraticScale
	for i, stake := range [bettors]float64{d / boldScale, d / cautiousScale, quadratic * math.Abs(quadratic)} {
		stake = max(min(stake, maxStake), -maxStake)
		e.wealth[0][i] += math.Log1p(stake)
		e.wealth[1][i] += math.Log1p(-stake)
	}
}

// pValue returns the p-value of a side (0: hedging helps, 1: hedging harms). It is an upper bound of the probability that
// the side reaches its present wealth by chance. The bound holds after any number of pairs, and is corrected for the number
// of trials.
func (e *evidence) pValue(side int) float64 {
	wealth, k := 0.0, float64(e.number)
	for _, w := range e.wealth[side] {
		wealth += math.Exp(min(w, 600)) / bettors
	}
	return k * k * math.Pi * math.Pi / 6 / wealth
}

// verdict returns AuditOn if the evidence proves that hedging helps, and AuditOff if it proves that hedging harms. Otherwise it
// returns AuditTrying.
func (e *evidence) verdict() observe.Verdict {
	switch {
	case e.pValue(0) <= maxErrorProbability/2:
		return observe.AuditOn
	case e.pValue(1) <= maxErrorProbability/2:
		return observe.AuditOff
	default:
		return observe.AuditTrying
	}
}

// isDecided reports whether the verdict v is that hedging helps (AuditOn) or harms (AuditOff).
func isDecided(v observe.Verdict) bool { return v == observe.AuditOn || v == observe.AuditOff }

// confidence returns the confidence in the more probable of the two results, hedging helps and hedging harms. It is 1 minus
// the p-value of that result, but at least 0.5.
func (e *evidence) confidence() float64 { return max(1-min(e.pValue(0), e.pValue(1)), 0.5) }
