package audit

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

// A Judgement is what is exported of an Audit.
type Judgement struct {
	verdict verdict
	age     time.Duration // of the last evidence
	levels  [verdicts][2]float64
	trial   evidence
	base    int
	all     [2][bins]float32
}

// Judgement returns what is worth to be exported: nothing if hedging was found neither to help nor to harm.
// The time is by the engine's clock.
func (a *Audit) Judgement(now time.Time) (j Judgement, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.verdict.decides() {
		return j, false
	}
	j = Judgement{verdict: a.verdict, age: time.Duration(now.UnixNano() - a.heard), levels: a.levels.judged, trial: a.evidence(), base: a.base}
	if a.tails != nil {
		j.all = a.tails.all
	}
	return j, true
}

// Absorb takes what another process has found, unless it was found here whether hedging helps or harms.
// The time is by the engine's clock.
func (a *Audit) Absorb(j *Judgement, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.verdict.decides() {
		return
	}
	at := now.UnixNano()
	a.decide(j.verdict, at)
	a.heard -= int64(j.age)
	a.levels.judged, a.trial, a.base = j.levels, j.trial, j.base
	a.tails, a.trial.looks = &tails{all: j.all}, j.trial.pairs
}

// Append appends the verdict, and the age in nanoseconds; then as
// IEEE 754 numbers the levels and the evidence; then the base and the histograms.
func (j *Judgement) Append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(j.verdict))
	b = binary.AppendUvarint(b, uint64(max(j.age, 0)))
	for _, x := range j.numbers() {
		b = binary.AppendUvarint(b, math.Float64bits(*x))
	}
	b = binary.AppendUvarint(b, uint64(max(j.base, 0)))
	for arm := range j.all {
		for _, n := range j.all[arm] {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

func (j *Judgement) numbers() [8]*float64 {
	helps, harms := &j.levels[helpful], &j.levels[harmful]
	return [8]*float64{&helps[0], &helps[1], &harms[0], &harms[1], &j.trial.pairs, &j.trial.sum, &j.trial.squares, &j.trial.calls}
}

// Decode reads what Append has written, and reports whether it makes sense.
func Decode(d *decode.Decoder) (j Judgement, ok bool) {
	found, age := d.Uvarint(), d.Uvarint()
	for _, x := range j.numbers() {
		*x = math.Float64frombits(d.Uvarint())
	}
	base := d.Uvarint()
	for arm := range j.all {
		for i := range j.all[arm] {
			n := d.Uvarint()
			if n > math.MaxUint32 {
				return j, false
			}
			j.all[arm][i] = float32(n)
		}
	}
	highest := float64(sketch.Index(math.MaxInt64))
	if *d == nil || found != uint64(helpful) && found != uint64(harmful) || float64(base) > highest {
		return j, false
	}
	for i, x := range j.numbers() {
		switch level := i < 4; {
		case level && !(*x >= 0 && *x <= highest): // written so that NaN fails
			return j, false
		case !level && !(math.Abs(*x) <= 1e12), !level && *x < 0 && x != &j.trial.sum:
			return j, false
		}
	}
	if j.trial.sum*j.trial.sum > 1.001*j.trial.pairs*j.trial.squares+1e-9 { // no pairs add up to that
		return j, false
	}
	j.verdict, j.age, j.base = verdict(found), time.Duration(min(age, uint64(verdictLasts))), int(base)
	return j, true
}
