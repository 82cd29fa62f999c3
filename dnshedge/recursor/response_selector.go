package recursor

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// keepFallback keeps a poor verdict until something better comes, if there is memory for it.
func (j *responseSelector) keepFallback(r *parsedResponse) {
	n := memoryOfRecords(r.answer, r.authority)
	if !j.core.reserveMemory(n) {
		return
	}
	j.core.releaseMemory(j.heldBytes)
	j.heldBytes = n
	j.fallback.Store(r)
}

// releaseMemory ends what the judge holds. Queries that have lost may refer to it for a while.
func (j *responseSelector) releaseMemory() {
	j.core.releaseMemory(j.heldBytes)
	j.selected = nil
	if j.fallback.Load() != nil {
		j.fallback.Store(new(parsedResponse)) // a server has said something
	}
}

// errUnexplainedDenial is why the next server is asked although there is a response. It says nothing of other questions.
var errUnexplainedDenial = errors.New("recursor: denial without a reason")

// responseSelector reads the responses to one task, and remembers what they amount to.
type responseSelector struct {
	core      *core
	budget    *questionBudget
	zone      *delegation
	q         question
	wholeName bool

	selected   *parsedResponse                // of the goroutine that asks
	fallback   atomic.Pointer[parsedResponse] // the first of those that are worth most
	heldBytes  int64                          // bytes that poor takes; of the goroutine that asks
	ownFailure atomic.Bool                    // a server's name was not looked up because of who asks
	queryLocal atomic.Bool                    // that is because of the question, whoever asks for it
	bogusCount int                            // responses that were passed over because of their signatures
	refused    bool                           // a server has answered REFUSED
	task       *nameservers.Task                    // that it is of
}

// checkSignatures looks at the signatures of a response, as far as that is possible at once, and returns why another server is asked.
func (j *responseSelector) checkSignatures(r *parsedResponse) error {
	if j.core.validator == nil || r.kind != kindReferral && (r.kind != kindAnswer || !j.wholeName || j.q.cd) {
		return nil
	}
	s := r.chainResponse(j.q.name, j.q.qtype)
	var cut *chain.Zone
	if r.referral != nil {
		cut = r.referral.chain
	}
	err := j.core.validator.CheckResponse(j.budget.Validation(), s, cut)
	if err == nil {
		if r.keys = s.Keys; s.Status != validate.Unchecked {
			r.applyValidation(s)
		}
		return nil
	}
	unsigned := errors.Is(err, chain.ErrUnsigned)
	// In a repetition, servers that agree have turned out to be wrong.
	repeated := len(j.task.Avoid) > 0
	if p := j.fallback.Load(); unsigned && !repeated && p != nil && p.badlySigned && p.rcode == r.rcode && p.kind == r.kind { // two say so
		return nil
	}
	if j.bogusCount++; j.bogusCount > maxBogusRetries {
		return nil
	}
	r.badlySigned = true
	if p := j.fallback.Load(); p == nil || r.fallbackRank() > p.fallbackRank() {
		j.keepFallback(r)
	}
	if unsigned {
		j.task.Brief = true // it may be right, as below a cut that no referral told of: what the zones above say of that is found out next
		return errUnexplainedDenial
	}
	return nameservers.ErrUnsigned
}

// responseSelector is a task's.
func (j *responseSelector) selectResponse(m *dns.Msg, from netip.AddrPort) error {
	j.refused = j.refused || m.Rcode == dns.RcodeRefused
	r := readResponse(m, j.zone, j.q, j.wholeName, time.Now())
	r.zone, r.server = j.zone, from
	if j.core.wantsSignatures() {
		r.ttl = min(r.ttl, limitTTLsBySignatures(time.Now(), chooseLongest, r.answer, r.authority))
	}
	if r.referral != nil {
		r.referral.chain.ReferredBy = from
	}
	if err := j.checkSignatures(r); err != nil {
		return err
	}
	switch {
	case r.fallback:
		p := j.fallback.Load()
		if p != nil && r.agreesWith(p) {
			j.selected = p
			return nil
		}
		if p == nil || r.fallbackRank() > p.fallbackRank() {
			j.keepFallback(r)
		}
		switch {
		case r.nonAuthoritative:
			return nameservers.ErrLame
		case r.isEmpty():
			return errUnexplainedDenial
		}
		return nameservers.ErrFailed
	case r.kind == kindLame:
		return nameservers.ErrLame
	case r.kind == kindFailed:
		return nameservers.ErrFailed
	}
	j.selected = r
	return nil
}
