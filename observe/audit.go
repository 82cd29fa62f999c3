package observe

import "time"

// A Verdict is what an audit has found about hedging calls to a host.
type Verdict string

// The verdicts of an audit.
const (
	AuditTrying Verdict = "trying" // nothing yet: calls are hedged, but for short times in which hedging rests
	AuditOn     Verdict = "on"     // hedging helps: calls are hedged
	AuditOff    Verdict = "off"    // hedging harms: calls are not hedged
	AuditSame   Verdict = "same"   // after 24 minutes no difference is found: calls are hedged
)

// An Audit is what hedging does to the calls to a host, as measured by switching it off
// and on, see hedge.WithAudit. The zero value says that the host is not audited.
type Audit struct {
	Verdict Verdict `json:"verdict"`
	// Confidence, in [0.5, 1], is one less the probability that luck alone would ever show as much, in this direction,
	// however often one looks: at least 0.96 when a verdict of on or off is found. 0: nothing is known.
	Confidence float64 `json:"confidence"`
	Pairs      int     `json:"pairs"` // of times with and without hedging that were compared

	P99       time.Duration `json:"p99"`        // what callers wait without hedging; 0: that is not known
	Saved     time.Duration `json:"saved"`      // of it by hedging; negative: hedging costs so much
	PlusMinus time.Duration `json:"plus_minus"` // half of the 95 % interval of Saved
}
