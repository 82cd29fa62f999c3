package audit

import (
	"time"

	"github.com/gohedge/hedge/observe"
)

// SetLastPair sets the time at which the last pair was compared.
func (a *Audit) SetLastPair(t time.Time) { a.lastPairAt = t.UnixNano() }

// FailureBin is the position of a failure in the tail of a slot, in octaves.
var FailureBin = float64(failureBin) / binsPerOctave

// TrialVerdict returns the verdict of trial n for pairs with the given differences, and the number of pairs after which it is found; 0: it
// is not found.
func TrialVerdict(n int, differences func(pair int) float64, pairs int) (v observe.Verdict, after int) {
	e := evidence{number: n}
	for i := range pairs {
		e.addPair(differences(i))
		if v := e.verdict(); isDecided(v) {
			return v, i + 1
		}
	}
	return observe.AuditTrying, 0
}
