package policy

import (
	"cmp"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

// An experiment is the audit of a key's host, as an admission check and as an observer of calls. That of a host without audit is nil.
type experiment struct{ *audit.Audit }

// isAudited reports whether the host is audited: hedging is off in some time slots, for comparison.
func (x *experiment) isAudited() bool { return x.Audit != nil }

func (x *experiment) deny(admission) observe.Reason {
	if x.IsHedgingOff() {
		return observe.DeniedAudit
	}
	return None
}

// endCall records the result of a call that ends now.
func (x *experiment) endCall(now time.Time, r *Result) {
	waited := cmp.Or(r.Waited, r.Latency)
	x.EndCall(now.Add(-waited).UnixNano(), audit.Result{Latency: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
}

// takeNewResults returns a function that reports new results to an observer, and the change of the verdict. Both are nil if there is none.
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

// addVerdict adds the verdict to the result of a call.
func (x *experiment) addVerdict(r *observe.RequestResult) { r.Audit = string(x.Verdict()) }

// experiments are the audits of the hosts of an engine; nil: they are not audited.
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
