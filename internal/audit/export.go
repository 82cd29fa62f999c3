package audit

import (
	"encoding/json"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// limits of an export
const (
	maxTrials = 1 << 20
	maxBytes  = 1 << 10
	maxTime   = 24 * time.Hour
)

// A Judgement is the exported state of an Audit.
type Judgement struct {
	Trial  int           // number of the one that tests the verdict
	Age    time.Duration // of the last compared pair
	Level  float64       // mean latency of the calls, in octaves
	Report observe.Audit // with the verdict
}

// Judgement returns the state to export. ok is false if hedging was found neither to help nor to harm.
// The time is by the engine's clock.
func (a *Audit) Judgement(now time.Time) (j Judgement, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Judgement{a.trial.number, min(time.Duration(now.UnixNano()-a.pairCame), staleAfter), a.level, a.currentReport()}, isDecided(a.verdict)
}

// Absorb takes over the verdict of another process, unless this process has found whether hedging helps or harms.
// The time is by the engine's clock.
func (a *Audit) Absorb(j *Judgement, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isDecided(a.verdict) {
		return
	}
	a.trial.number, a.arms = max(a.trial.number, j.Trial), nil
	a.beginTrial(j.Report.Verdict, now.UnixNano()-int64(j.Age))
	a.level, *a.report = j.Level, j.Report
}

// Append appends the judgement as JSON, with its length.
func (j *Judgement) Append(b []byte) []byte {
	text, _ := json.Marshal(j) // a Judgement has only numbers that JSON allows
	return decode.AppendBytes(b, text)
}

// Decode reads the output of Append, and reports whether it is valid.
func Decode(d *decode.Decoder) (j Judgement, ok bool) {
	err := json.Unmarshal(d.Bytes(maxBytes), &j)
	r := &j.Report
	areTimes := min(j.Age, r.P99, r.PlusMinus, r.Saved+maxTime) >= 0 && max(j.Age, r.P99, r.PlusMinus, r.Saved) <= maxTime
	areShares := min(r.Confidence, r.FailureShare, r.FailuresSaved+1, r.FailuresPlusMinus, r.Extra, j.Level) >= 0 &&
		max(r.Confidence, r.FailureShare, r.FailuresSaved, r.Extra/10, r.FailuresPlusMinus/10, j.Level/100) <= 1
	isCount := min(j.Trial, r.Pairs) >= 0 && max(j.Trial, r.Pairs) <= maxTrials
	return j, *d != nil && err == nil && isDecided(r.Verdict) && areTimes && areShares && isCount
}
