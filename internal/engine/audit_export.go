package engine

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

// A judgement is what is exported of an audit.
type judgement struct {
	host    string
	verdict Verdict
	age     time.Duration // of the last evidence
	levels  [verdicts][2]float64
	trial   evidence
	base    int
	all     [2][bins]float32
}

// append appends the judgement: host, verdict, and the age in nanoseconds; then as
// IEEE 754 numbers the levels and the evidence; then the base and the histograms.
func (j *judgement) append(b []byte) []byte {
	b = decode.AppendBytes(b, j.host)
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

func (j *judgement) numbers() [8]*float64 {
	helpful, harmful := &j.levels[Helpful], &j.levels[Harmful]
	return [8]*float64{&helpful[0], &helpful[1], &harmful[0], &harmful[1], &j.trial.pairs, &j.trial.sum, &j.trial.squares, &j.trial.calls}
}

// decodeJudgement reads what append has written, and reports whether it makes sense.
func decodeJudgement(d *decode.Decoder) (j judgement, ok bool) {
	j.host = string(d.Bytes(maxName))
	verdict, age := d.Uvarint(), d.Uvarint()
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
	if *d == nil || verdict == uint64(Trying) || verdict >= uint64(verdicts) || float64(base) > highest {
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
	if j.trial.sum*j.trial.sum > 1.001*j.trial.pairs*j.trial.squares+1e-9 { // which no pairs give
		return j, false
	}
	j.verdict, j.age, j.base = Verdict(verdict), time.Duration(min(age, uint64(maxAge))), int(base)
	return j, true
}

// appendAudits appends the verdicts that there are, and returns how many.
func (e *Engine) appendAudits(now time.Time) (b []byte, n uint64) {
	now = e.clock(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	for host, a := range e.audits {
		if len(host) > maxName || len(b) > maxExport/4 {
			continue
		}
		if j, ok := a.judgement(now); ok {
			j.host = host
			b = j.append(b)
			n++
		}
	}
	return b, n
}

// judgement returns what is worth to be exported; nothing while there is no verdict.
func (a *audit) judgement(now time.Time) (j judgement, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.verdict == Trying {
		return j, false
	}
	j = judgement{verdict: a.verdict, age: time.Duration(now.UnixNano() - a.heard), levels: a.judged, trial: a.evidence(), base: a.base}
	if a.tails != nil {
		j.all = a.tails.all
	}
	return j, true
}

// absorbAudits takes verdicts for hosts that have a key and no verdict of their own.
func (e *Engine) absorbAudits(all []judgement, now time.Time) {
	now = e.clock(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		if a := e.audits[all[i].host]; a != nil {
			a.absorb(&all[i], now)
		}
	}
}

// absorb takes the verdict of another process, unless there is one.
func (a *audit) absorb(j *judgement, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.verdict != Trying {
		return
	}
	at := now.UnixNano()
	a.decide(j.verdict, at)
	a.heard -= int64(j.age)
	a.judged, a.trial, a.base = j.levels, j.trial, j.base
	a.tails = &probeTails{all: j.all}
}
