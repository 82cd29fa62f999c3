package recursor

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// keep keeps a poor verdict until something better comes, if there is memory for it.
func (j *judge) keep(r *verdict) {
	n := memoryOf(r.answer, r.authority)
	if !j.core.hold(n) {
		return
	}
	j.core.letGo(j.held)
	j.held = n
	j.poor.Store(r)
}

// letGo ends what the judge holds. Queries that have lost may refer to it for a while.
func (j *judge) letGo() {
	j.core.letGo(j.held)
	j.taken = nil
	if j.poor.Load() != nil {
		j.poor.Store(new(verdict)) // a server has said something
	}
}

// errPoor is why the next server is asked although there is a response. It says nothing of other questions.
var errPoor = errors.New("recursor: denial without a reason")

// judge reads the responses to one task, and remembers what they amount to.
type judge struct {
	core  *core
	bill  *bill
	zone  *delegation
	q     question
	whole bool

	taken   *verdict                // of the goroutine that asks
	poor    atomic.Pointer[verdict] // the first of those that are worth most
	held    int64                   // bytes that poor takes; of the goroutine that asks
	mine    atomic.Bool             // a server's name was not looked up because of who asks
	own     atomic.Bool             // that is because of the question, whoever asks for it
	bogus   int                     // responses that were passed over because of their signatures
	refused bool                    // a server has answered REFUSED
	task    *fleet.Task             // that it is of
}

// weigh looks at the signatures of a response, as far as that is possible at once, and returns why another server is asked.
func (j *judge) weigh(r *verdict) error {
	if j.core.chains == nil || r.kind != isReferral && (r.kind != isAnswer || !j.whole || j.q.cd) {
		return nil
	}
	s := r.said(j.q.name, j.q.qtype)
	var cut *chain.Zone
	if r.cut != nil {
		cut = r.cut.chain
	}
	err := j.core.chains.Judge(j.bill.Work(), s, cut)
	if err == nil {
		if r.keys = s.Keys; s.Status != validate.Unchecked {
			r.judged(s)
		}
		return nil
	}
	unsigned := errors.Is(err, chain.ErrUnsigned)
	// In a repetition, servers that agree have turned out to be wrong.
	repeated := len(j.task.Avoid) > 0
	if p := j.poor.Load(); unsigned && !repeated && p != nil && p.bad && p.rcode == r.rcode && p.kind == r.kind { // two say so
		return nil
	}
	if j.bogus++; j.bogus > maxAgain {
		return nil
	}
	r.bad = true
	if p := j.poor.Load(); p == nil || r.worth() > p.worth() {
		j.keep(r)
	}
	if unsigned {
		j.task.Brief = true // it may be right, as below a cut that no referral told of: what the zones above say of that is found out next
		return errPoor
	}
	return fleet.ErrUnsigned
}

// judge is a task's.
func (j *judge) judge(m *dns.Msg, from netip.AddrPort) error {
	j.refused = j.refused || m.Rcode == dns.RcodeRefused
	r := read(m, j.zone, j.q, j.whole, time.Now())
	r.zone, r.from = j.zone, from
	if j.core.signed() {
		r.ttl = min(r.ttl, endWithSignatures(time.Now(), most, r.answer, r.authority))
	}
	if r.cut != nil {
		r.cut.chain.From = from
	}
	if err := j.weigh(r); err != nil {
		return err
	}
	switch {
	case r.poor:
		p := j.poor.Load()
		if p != nil && r.agrees(p) {
			j.taken = p
			return nil
		}
		if p == nil || r.worth() > p.worth() {
			j.keep(r)
		}
		switch {
		case r.foreign:
			return fleet.ErrLame
		case r.bare():
			return errPoor
		}
		return fleet.ErrFailed
	case r.kind == isLame:
		return fleet.ErrLame
	case r.kind == isFailed:
		return fleet.ErrFailed
	}
	j.taken = r
	return nil
}
