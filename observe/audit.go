package observe

import "time"

// A Verdict says whether hedging helps a host, as hedge.WithAudit has measured.
type Verdict string

// The verdicts of an audit.
const (
	AuditTrying  Verdict = "trying"  // nothing yet: calls are hedged, except in half of all slots of 20 s
	AuditOn      Verdict = "on"      // hedging helps: calls are hedged
	AuditOff     Verdict = "off"     // hedging harms: calls are not hedged
	AuditSame    Verdict = "same"    // no difference was found in an hour: calls are hedged, except in a quarter of all slots
	AuditUnclear Verdict = "unclear" // more than 1 % of the calls take longer than 6 s, with hedging and without, which is too long to tell: as AuditSame
)

// An Audit is the effect of hedging on the calls to a host, as measured by switching hedging off
// and on, see hedge.WithAudit. The zero value says that the host is not audited.
type Audit struct {
	Verdict Verdict `json:"verdict"`
	// Confidence, in [0.5, 1], is one less the probability that luck alone would ever show as much, in this direction,
	// however often one looks: at least 0.985 when a verdict of on or off is found. 0: nothing is known.
	Confidence float64 `json:"confidence"`
	Pairs      int     `json:"pairs"` // of times with and without hedging that were compared

	P99       time.Duration `json:"p99"`        // of calls without hedging; 0: not known
	Saved     time.Duration `json:"saved"`      // of it by hedging; negative: hedging costs so much
	PlusMinus time.Duration `json:"plus_minus"` // half of the 95 % interval of Saved

	FailureShare      float64 `json:"failure_share"`       // of the calls, without hedging
	FailuresSaved     float64 `json:"failures_saved"`      // of it by hedging; negative: hedging causes so many
	FailuresPlusMinus float64 `json:"failures_plus_minus"` // half of the 95 % interval of FailuresSaved

	Extra float64 `json:"extra"` // hedges per call while calls are hedged
}
