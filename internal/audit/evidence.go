package audit

import (
	"math"

	"github.com/gohedge/hedge/observe"
)

const (
	// maxErrorProbability is the maximum probability that a verdict is false, for any number of pairs and trials. The maximum for trial k
	// is maxErrorProbability * 6 / (π²k²).
	maxErrorProbability = 0.03

	maxStake = 0.95 // largest share of its wealth that a bettor stakes
)

// betScales holds the difference, in octaves, from which each bettor stakes maxStake. The small scale serves differences from slower
// servers, and the large one differences from rare stalls and failures. Each side has one bettor for each scale.
var betScales = [...]float64{0.4, 4}

// evidence is the result of the compared pairs of a trial: a sequential test by betting. One side bets that hedging helps, the other
// side that it harms. Both bet on the sign of each pair's difference, and stake more on a larger difference.
//
// Where hedging changes nothing, the bets are fair, because a hash has chosen the control slot. Then the wealth of a side ever
// exceeds n times its initial wealth with a probability of at most 1/n (Ville's inequality; Howard, Ramdas et al.,
// "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021).
type evidence struct {
	number    int                        // of the trial
	startedAt int64                      // start of the trial, by the engine's clock; 0: there was no call yet
	slowPairs int                        // pairs that do not count, because their calls took too long for a slot
	pairs     int                        // pairs that count
	wealth    [2][len(betScales)]float64 // logarithm of the wealth, by side (helps, harms) and bettor; 0 is the initial wealth
}

// addPair adds a pair. The difference d is the slowdown of the slowest calls without hedging, in octaves: 1 means twice as slow.
func (e *evidence) addPair(d float64) {
	e.pairs++
	for i, scale := range betScales {
		stake := max(min(d/scale, maxStake), -maxStake)
		e.wealth[0][i] += math.Log1p(stake)
		e.wealth[1][i] += math.Log1p(-stake)
	}
}

// pValue returns an upper bound of the probability that a side reaches its wealth by chance. The bound is valid after any number of pairs,
// and corrected for the number of trials.
func (e *evidence) pValue(side int) float64 {
	wealth, k := 0.0, float64(e.number)
	for _, w := range e.wealth[side] {
		wealth += math.Exp(min(w, 600)) / float64(len(betScales))
	}
	return k * k * math.Pi * math.Pi / 6 / wealth
}

// verdict returns AuditOn or AuditOff if the evidence proves that hedging helps or harms, and otherwise AuditTrying.
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

// isDecided reports whether v says that hedging helps or harms.
func isDecided(v observe.Verdict) bool { return v == observe.AuditOn || v == observe.AuditOff }

// confidence returns 1 minus the smaller p-value of the two sides. It is in [0.5, 1].
func (e *evidence) confidence() float64 { return max(1-min(e.pValue(0), e.pValue(1)), 0.5) }
