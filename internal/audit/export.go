package audit

import (
	"encoding/json"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// Limits of the values in an export.
const (
	maxExportedCount = 1 << 20
	maxStateBytes    = 1 << 10
	maxExportedTime  = 24 * time.Hour
)

// A State is the exported state of an Audit. Its JSON text has the same fields.
type State struct {
	Trial  int           // number of the trial that tests the verdict
	Age    time.Duration // time since the last compared pair
	Level  float64       // mean latency of the calls at the verdict, in octaves
	Report observe.Audit // results of the audit, including the verdict
}

// ExportState returns the state to export. ok is false if there is nothing to export, because the verdict is not decided. The argument now
// is a time of the engine's clock.
func (a *Audit) ExportState(now time.Time) (j State, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return State{a.trial.number, min(time.Duration(now.UnixNano()-a.lastPairAt), verdictLifetime), a.verdictLatency, a.currentReport()}, isDecided(a.verdict)
}

// ImportState adopts the state of another process, unless this audit has a decided verdict. The argument now is a time of the engine's
// clock.
func (a *Audit) ImportState(j *State, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isDecided(a.verdict) {
		return
	}
	a.trial.number, a.arms = max(a.trial.number, j.Trial), nil
	a.beginTrial(j.Report.Verdict, now.UnixNano()-int64(j.Age))
	a.verdictLatency, *a.report = j.Level, j.Report
}

// AppendJSON appends the JSON text of the state to b, preceded by its length.
func (j *State) AppendJSON(b []byte) []byte {
	text, _ := json.Marshal(j) // a State has only numbers that JSON allows
	return decode.AppendBytes(b, text)
}

// DecodeState decodes a state that AppendJSON has encoded. It reports false if the state is invalid.
func DecodeState(d *decode.Decoder) (j State, ok bool) {
	err := json.Unmarshal(d.Bytes(maxStateBytes), &j)
	r := &j.Report
	areTimes := min(j.Age, r.P99, r.PlusMinus, r.Saved+maxExportedTime) >= 0 && max(j.Age, r.P99, r.PlusMinus, r.Saved) <= maxExportedTime
	areShares := min(r.Confidence, r.FailureShare, r.FailuresSaved+1, r.FailuresPlusMinus, r.Extra, j.Level) >= 0 &&
		max(r.Confidence, r.FailureShare, r.FailuresSaved, r.Extra/10, r.FailuresPlusMinus/10, j.Level/100) <= 1
	isCount := min(j.Trial, r.Pairs) >= 0 && max(j.Trial, r.Pairs) <= maxExportedCount
	return j, *d != nil && err == nil && isDecided(r.Verdict) && areTimes && areShares && isCount
}
