package policy

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/observe"
)

// An experiment is the audit of a host. To the keys of the host it is an admission check and an observer of their calls. A nil experiment
// denies nothing and has no verdict.
type experiment struct {
	*audit.Audit

	// guarded by Engine.mu
	keys  int
	calls int64 // of evicted keys
}

func (x *experiment) deny(admission) observe.Reason {
	if x != nil && x.IsDark() {
		return observe.DeniedAudit
	}
	return None
}

// endCall records the result of a call that ends now.
func (x *experiment) endCall(now time.Time, r *Result) {
	waited := cmp.Or(r.Waited, r.Latency)
	x.EndCall(now.Add(-waited).UnixNano(), audit.Result{Waited: waited, Failed: !r.Answered && !r.Canceled, Hedges: r.Hedges})
}

// takeNews returns a function that reports new results to an observer, and the change of the verdict. Both are nil if there is none.
func (x *experiment) takeNews() (report func(observe.Observer, observe.KeyInfo), change *Change) {
	v, changed, isNew := x.TakeNews()
	if !isNew {
		return nil, nil
	}
	if changed {
		change = &Change{Topic: Judging, Bad: v.Verdict == observe.AuditOff, Audit: v}
	}
	return func(o observe.Observer, host observe.KeyInfo) { o.Audited(host, v) }, change
}

// describe adds the verdict to the result of a call.
func (x *experiment) describe(r *observe.RequestResult) {
	if x != nil {
		r.Audit = string(x.Verdict())
	}
}

// experiments are the audits of the hosts of an engine. Guarded by Engine.mu.
type experiments struct {
	isOn    bool
	byHost  map[string]*experiment
	decided evictedStates[string, *experiment] // with a verdict, of hosts without keys
}

func newExperiments(s *Setup) experiments {
	return experiments{isOn: s.Audit && !s.Shadow, byHost: make(map[string]*experiment)}
}

// join returns the experiment of a host for one more key; nil if there are no experiments.
func (xs *experiments) join(host string) *experiment {
	if !xs.isOn {
		return nil
	}
	x := xs.byHost[host]
	if x == nil {
		if x, _, _ = xs.decided.Take(host); x == nil {
			x = &experiment{Audit: audit.New(host)}
		}
		xs.byHost[host] = x
	}
	x.keys++
	return x
}

// leave removes a key of the host, with so many calls. The verdict of a host without keys is kept, for as many hosts as bound says.
func (xs *experiments) leave(host string, calls int64, at time.Duration, bound int) {
	x := xs.byHost[host]
	if x == nil {
		return
	}
	x.calls += calls
	if x.keys--; x.keys > 0 {
		return
	}
	delete(xs.byHost, host)
	if x.Verdict() != observe.AuditTrying {
		xs.decided.Put(host, x, x.calls, at, bound)
	}
}

// reset forgets the verdicts of some hosts without keys.
func (xs *experiments) reset(covers func(host string) bool) {
	xs.decided.Each(func(host string, _ **experiment, _ int64) bool { return !covers(host) })
}

// appendVerdicts appends the verdicts to an export, and returns their number. The time is by the engine's clock.
func (xs *experiments) appendVerdicts(now time.Time) (b []byte, n uint64) {
	add := func(host string, x *experiment) {
		if j, ok := x.Judgement(now); ok && len(b) < maxExport/4 {
			b = j.Append(decode.AppendBytes(b, host))
			n++
		}
	}
	for host, x := range xs.byHost {
		add(host, x)
	}
	xs.decided.Each(func(host string, x **experiment, _ int64) bool {
		add(host, *x)
		return true
	})
	return b, n
}

// A hostVerdict is the exported verdict of a host.
type hostVerdict struct {
	host string
	audit.Judgement
}

// decodeVerdicts reads the verdicts of an export, and returns those of the first hosts, at most so many, once for each host.
func decodeVerdicts(d *decode.Decoder, hosts int) (all []hostVerdict, err error) {
	seen := make(map[string]bool)
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		host := label.Short(string(d.Bytes(maxName)))
		j, ok := audit.Decode(d)
		if !ok {
			return nil, fmt.Errorf("%w: a verdict makes no sense", decode.ErrDamaged)
		}
		if !seen[host] && len(all) < hosts {
			seen[host] = true
			all = append(all, hostVerdict{host, j})
		}
	}
	return all, nil
}

// absorbVerdicts stores the verdicts for hosts that have none. The time is by the engine's clock.
func (xs *experiments) absorbVerdicts(all []hostVerdict, now time.Time, at time.Duration, bound int) {
	if !xs.isOn {
		return
	}
	for i := range all {
		host, j := all[i].host, &all[i].Judgement
		if x := xs.byHost[host]; x != nil {
			x.Absorb(j, now)
			continue
		}
		x, calls, ok := xs.decided.Take(host)
		if !ok {
			x = &experiment{Audit: audit.New(host)}
		}
		x.Absorb(j, now)
		xs.decided.Put(host, x, calls, at, bound)
	}
}
