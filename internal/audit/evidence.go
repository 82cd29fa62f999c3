package audit

import (
	"math"

	"github.com/gohedge/hedge/observe"
)

const (
	// A verdict is false with a probability of at most mayErr, however many pairs and trials there are: trial k may err with
	// mayErr * 6 / (π²k²).
	maxErrorProbability = 0.03

	maxStake = 0.95 // of its wealth that a bettor stakes
)

// betScales are the differences, in octaves, on which the bettors stake all that they may. Rare stalls and failures make large
// differences, and slower servers make small ones.
var betScales = [...]float64{0.4, 4}

// evidence is the sum of the pairs of a trial. Two sides bet on the sign of each pair's difference, that hedging helps and that it
// harms. Each stakes more on a larger difference. Where hedging changes nothing, the bets are fair, because a hash has chosen
// the dark slot. Then the probability that the wealth of a side ever exceeds n times its beginning is at most 1/n
// (Ville's inequality; Howard, Ramdas et al., "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021).
type evidence struct {
	number    int   // of the trial
	startedAt int64 // when the trial did, by the engine's clock; 0: there was no call
	slowPairs int   // pairs that are not counted, because calls took too long for their slots
	pairs     int
	wealth    [2][len(betScales)]float64 // logarithms, by side (helps, harms) and bettor
}

// addPair adds the difference of a pair: by how many octaves the slowest calls are slower without hedging.
func (e *evidence) addPair(d float64) {
	e.pairs++
	for i, scale := range betScales {
		stake := max(min(d/scale, maxStake), -maxStake)
		e.wealth[0][i] += math.Log1p(stake)
		e.wealth[1][i] += math.Log1p(-stake)
	}
}

// pValue returns the probability, at most, that a side ever has as much wealth by luck, in this trial or one that counts as much.
func (e *evidence) pValue(side int) float64 {
	wealth, k := 0.0, float64(e.number)
	for _, w := range e.wealth[side] {
		wealth += math.Exp(min(w, 600)) / float64(len(betScales))
	}
	return k * k * math.Pi * math.Pi / 6 / wealth
}

// verdict returns the verdict for which the evidence is enough; AuditTrying if it is not.
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

// confidence returns how sure the direction is to which the evidence points, in [0.5, 1].
func (e *evidence) confidence() float64 { return max(1-min(e.pValue(0), e.pValue(1)), 0.5) }
