package audit

import (
	"encoding/json"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// Limits of imported states, which may be damaged or forged.
const (
	maxExportedCount = 1 << 20        // maximum of a trial number or a number of pairs
	maxStateBytes    = 1 << 10        // maximum length of the JSON text of a state
	maxExportedTime  = 24 * time.Hour // maximum of a duration
)

// A State is the state of an Audit with a decided verdict, in the form that is exported to another process. Its JSON
// encoding uses the same field names.
type State struct {
	Trial  int           // number of the trial that retests the verdict
	Age    time.Duration // time since the latest pair was compared
	Level  float64       // mean latency at the verdict: log2 of the nanoseconds minus 14; 0: unknown
	Report observe.Audit // results of the audit, including the verdict
}

// ExportState returns the state to export at the time now of the engine's clock. ok is false if the verdict is not decided, so
// that there is nothing to export.
func (a *Audit) ExportState(now time.Time) (j State, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return State{a.trial.number, min(time.Duration(now.UnixNano()-a.lastPairAt), verdictLifetime), a.verdictLatency, a.reportLocked()}, isDecided(a.verdict)
}

// ImportState adopts the state j, which another process has exported. It does nothing if this audit already has a decided
// verdict. The argument now is the time of the engine's clock.
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

// AppendJSON appends to b the JSON encoding of the state, preceded by its length as a uvarint.
func (j *State) AppendJSON(b []byte) []byte {
	text, _ := json.Marshal(j) // a State has only numbers that JSON allows
	return decode.AppendBytes(b, text)
}

// DecodeState decodes a state that AppendJSON has encoded. ok is false if the encoding or a value is invalid.
func DecodeState(d *decode.Decoder) (j State, ok bool) {
	err := json.Unmarshal(d.Bytes(maxStateBytes), &j)
	r := &j.Report
	areTimes := min(j.Age, r.P99, r.PlusMinus, r.Saved+maxExportedTime) >= 0 && max(j.Age, r.P99, r.PlusMinus, r.Saved) <= maxExportedTime
	areShares := min(r.Confidence, r.FailureShare, r.FailuresSaved+1, r.FailuresPlusMinus, r.Extra, j.Level) >= 0 &&
		max(r.Confidence, r.FailureShare, r.FailuresSaved, r.Extra/10, r.FailuresPlusMinus/10, j.Level/100) <= 1
	isCount := min(j.Trial, r.Pairs) >= 0 && max(j.Trial, r.Pairs) <= maxExportedCount
	return j, *d != nil && err == nil && isDecided(r.Verdict) && areTimes && areShares && isCount
}
