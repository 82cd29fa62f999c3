package policy

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// An experiment connects a key to the audit of its host. It denies hedges in the audit's control slots, in which hedging is
// off, and passes the results of calls to the audit.
//
// The pointer is nil while the host is not audited. SetConfig of the engine stores another one when audits begin or end.
type experiment struct{ audit atomic.Pointer[audit.Audit] }

// isAudited reports whether the key's host is audited.
func (x *experiment) isAudited() bool { return x.audit.Load() != nil }

// deny implements [admissionCheck]. It denies hedges in control slots, and while the verdict is that hedging harms.
func (x *experiment) deny(admission) observe.Reason {
	if x.audit.Load().IsHedgingOff() {
		return observe.DeniedAudit
	}
	return None
}

// endCall adds the result r of a call, which ended at the time now, to the audit. It does nothing if the host is not audited.
func (x *experiment) endCall(now time.Time, r *Result) {
	if a := x.audit.Load(); a != nil {
		waited := cmp.Or(r.Waited, r.Latency)
		a.EndCall(now.Add(-waited).UnixNano(), audit.Result{Latency: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
	}
}

// report returns the results of the audit, or the zero value if the host is not audited.
func (x *experiment) report() observe.Audit {
	a := x.audit.Load()
	if a == nil {
		return observe.Audit{}
	}
	return a.Report()
}

// takeNewResults returns the results that the audit has produced since takeNewResults was last called. If there are new
// results, report is a function that passes them to an observer. Its second argument must describe the audited host.
// Otherwise, and if the host is not audited, report is nil.
//
// If the verdict is new, change describes it, for the log. Otherwise change is nil.
func (x *experiment) takeNewResults() (report func(observe.Observer, observe.KeyInfo), change *Change) {
	a := x.audit.Load()
	if a == nil {
		return nil, nil
	}
	v, changed, isNew := a.TakeNewResults()
	if !isNew {
		return nil, nil
	}
	if changed {
		change = &Change{Kind: KindVerdict, Bad: v.Verdict == observe.AuditOff, Audit: v}
	}
	return func(o observe.Observer, host observe.KeyInfo) { o.Audited(host, v) }, change
}

// addVerdict stores the current verdict of the host's audit in r, the result of a call that observers will get.
func (x *experiment) addVerdict(r *observe.RequestResult) { r.Audit = string(x.audit.Load().Verdict()) }

// experiments holds the audits of all hosts of an engine. A nil pointer means that hosts are not audited.
type experiments = audit.HostAudits

// hasAudits reports whether hosts are audited. Shadow mode sends no hedges, so there is nothing to audit.
func (c *Config) hasAudits() bool { return c.Audit && !c.Shadow }

// newExperiments returns audits without hosts. It returns nil if c enables no audits.
func newExperiments(c *Config) *experiments {
	if !c.hasAudits() {
		return nil
	}
	return audit.NewHostAudits()
}

// A hostVerdict is the verdict of one host's audit, as it is exported.
type hostVerdict = audit.HostVerdict

// decodeVerdicts decodes the part of an export that holds, for each host, the verdict of its audit: whether hedging helps. It
// drops verdicts beyond limit. It returns an error if the encoding is invalid.
func decodeVerdicts(d *decode.Decoder, limit int) ([]hostVerdict, error) {
	return audit.DecodeVerdicts(d, limit)
}
