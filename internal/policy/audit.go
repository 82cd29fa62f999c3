package policy

import (
	"cmp"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// An experiment connects a key to the audit of its host: it denies hedges in control slots, and passes results of calls to the audit. The
// embedded pointer is nil if the host is not audited.
type experiment struct{ *audit.Audit }

// isAudited reports whether the host has an audit.
func (x *experiment) isAudited() bool { return x.Audit != nil }

func (x *experiment) deny(admission) observe.Reason {
	if x.IsHedgingOff() {
		return observe.DeniedAudit
	}
	return None
}

// endCall passes the result of a call that ends now to the audit.
func (x *experiment) endCall(now time.Time, r *Result) {
	waited := cmp.Or(r.Waited, r.Latency)
	x.EndCall(now.Add(-waited).UnixNano(), audit.Result{Latency: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
}

// takeNewResults returns a function that reports the new results of the audit to an observer, and the change of the verdict. The function
// is nil if there are no new results. The change is nil if the verdict stays.
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

// addVerdict adds the current verdict to the result of a call for observers.
func (x *experiment) addVerdict(r *observe.RequestResult) { r.Audit = string(x.Verdict()) }

// experiments is the table of the audits of the engine's hosts; nil if hosts are not audited.
type experiments = audit.Hosts

func newExperiments(s *Setup) *experiments {
	if !s.Audit || s.Shadow {
		return nil
	}
	return audit.NewHosts()
}

type hostVerdict = audit.HostVerdict

func decodeVerdicts(d *decode.Decoder, limit int) ([]hostVerdict, error) {
	return audit.DecodeVerdicts(d, limit)
}
