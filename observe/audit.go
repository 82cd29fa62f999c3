package observe

import "time"

// A Verdict is the conclusion of an audit about a host: whether hedging reduces latency and failures there, see
// hedge.WithAudit.
type Verdict string

// The verdicts of an audit.
const (
	AuditTrying  Verdict = "trying"  // no result yet: calls are hedged, except in half of all slots of 20 s
	AuditOn      Verdict = "on"      // hedging helps: calls are hedged
	AuditOff     Verdict = "off"     // hedging harms: calls are not hedged
	AuditSame    Verdict = "same"    // an hour has shown no difference: calls are hedged, except in a quarter of all slots
	AuditUnclear Verdict = "unclear" // more than 1 % of the calls take longer than 6 s, with and without hedging, so the effect cannot be measured: hedged as with AuditSame
)

// An Audit is the measured effect of hedging on the calls to a host, see hedge.WithAudit. Shares are in [0, 1]. The
// zero value means that the host is not audited.
type Audit struct {
	Verdict Verdict `json:"verdict"` // conclusion so far
	// Confidence is one minus the probability of a false result: that chance alone ever shows an effect of this size and
	// direction, although the audit tests again and again. It is in [0.5, 1], and at least 0.985 when the verdict becomes
	// on or off. 0 means unknown.
	Confidence float64 `json:"confidence"`
	Pairs      int     `json:"pairs"` // number of compared pairs of time slots, one with and one without hedging

	P99       time.Duration `json:"p99"`        // 99th percentile of latency without hedging; 0: unknown
	Saved     time.Duration `json:"saved"`      // time by which hedging reduces P99; negative: hedging increases P99
	PlusMinus time.Duration `json:"plus_minus"` // half the width of the 95 % confidence interval of Saved

	FailureShare      float64 `json:"failure_share"`       // share of failed calls without hedging
	FailuresSaved     float64 `json:"failures_saved"`      // share of calls by which hedging reduces FailureShare; negative: hedging increases FailureShare
	FailuresPlusMinus float64 `json:"failures_plus_minus"` // half the width of the 95 % confidence interval of FailuresSaved

	Extra float64 `json:"extra"` // hedges per call while hedging is on
}
