package policy

import (
	"cmp"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// An experiment connects a key to the audit of its host. It denies hedges in the audit's control slots, in which hedging is
// off, and passes the results of calls to the audit.
//
// The embedded pointer is nil if the host is not audited.
type experiment struct{ *audit.Audit }

// isAudited reports whether the key's host is audited.
func (x *experiment) isAudited() bool { return x.Audit != nil }

// deny implements [admissionCheck]. It denies hedges in control slots, and while the verdict is that hedging harms.
func (x *experiment) deny(admission) observe.Reason {
	if x.IsHedgingOff() {
		return observe.DeniedAudit
	}
	return None
}

// endCall adds the result r of a call, which ended at the time now, to the audit.
func (x *experiment) endCall(now time.Time, r *Result) {
	waited := cmp.Or(r.Waited, r.Latency)
	x.EndCall(now.Add(-waited).UnixNano(), audit.Result{Latency: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
}

// takeNewResults returns the results that the audit has produced since takeNewResults was last called. If there are new
// results, report is a function that passes them to an observer. Its second argument must describe the audited host.
// Otherwise report is nil.
//
// If the verdict is new, change describes it, for the log. Otherwise change is nil.
func (x *experiment) takeNewResults() (report func(observe.Observer, observe.KeyInfo), change *Change) {
	v, changed, isNew := x.TakeNewResults()
	if !isNew {
		return nil, nil
	}
	if changed {
		change = &Change{Kind: KindVerdict, Bad: v.Verdict == observe.AuditOff, Audit: v}
	}
	return func(o observe.Observer, host observe.KeyInfo) { o.Audited(host, v) }, change
}

// addVerdict stores the current verdict of the host's audit in r, the result of a call that observers will get.
func (x *experiment) addVerdict(r *observe.RequestResult) { r.Audit = string(x.Verdict()) }

// experiments holds the audits of all hosts of an engine. A nil pointer means that hosts are not audited.
type experiments = audit.HostAudits

// newExperiments returns the audits of a new engine, which has no hosts yet. It returns nil if auditing is off, or in shadow
// mode, which sends no hedges to audit.
func newExperiments(s *Setup) *experiments {
	if !s.Audit || s.Shadow {
		return nil
	}
	return audit.NewHostAudits()
}

// A hostVerdict is the verdict of one host's audit, as it is exported.
type hostVerdict = audit.HostVerdict

// decodeVerdicts decodes the verdicts of an export. It returns at most limit verdicts, and an error if the encoding is invalid.
func decodeVerdicts(d *decode.Decoder, limit int) ([]hostVerdict, error) {
	return audit.DecodeVerdicts(d, limit)
}
