package observe

import "time"

// A Verdict is what an audit has found about hedging calls to a host.
type Verdict string

// The verdicts of an audit.
const (
	AuditTrying Verdict = "trying" // nothing yet: calls are hedged, but for short times in which hedging rests
	AuditOn     Verdict = "on"     // hedging helps: calls are hedged
	AuditOff    Verdict = "off"    // hedging harms: calls are not hedged
)

// An Audit is what hedging does to the calls to a host, as measured by switching it off
// and on, see hedge.WithAudit. The zero value says that the host is not audited.
type Audit struct {
	Verdict    Verdict `json:"verdict"`
	Confidence float64 `json:"confidence"` // probability, in [0.5, 1], that the tail moves the way that it seems to; 0: nothing is known
	Pairs      int     `json:"pairs"`      // of times with and without hedging that were compared

	P99       time.Duration `json:"p99"`        // what callers wait without hedging; 0: that is not known
	Saved     time.Duration `json:"saved"`      // of it by hedging; negative: hedging costs so much
	PlusMinus time.Duration `json:"plus_minus"` // half of the 95 % interval of Saved
}
