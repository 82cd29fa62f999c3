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

// keepFallback keeps a response as the fallback, if there is memory for it.
func (j *responseSelector) keepFallback(r *parsedResponse) {
	n := estimateRecordMemory(r.answer, r.authority)
	if !j.core.reserveMemory(n) {
		return
	}
	j.core.releaseMemory(j.heldBytes)
	j.heldBytes = n
	j.fallback.Store(r)
}

// releaseMemory releases the responses. Losing queries may refer to the selector for a while.
func (j *responseSelector) releaseMemory() {
	j.core.releaseMemory(j.heldBytes)
	j.selected = nil
	if j.fallback.Load() != nil {
		j.fallback.Store(new(parsedResponse)) // an empty response still means that a server has answered
	}
}

// errUnprovenDenial leads to the next server because the response is empty. It says nothing of other questions.
var errUnprovenDenial = errors.New("recursor: denial without a reason")

// A responseSelector evaluates the responses to one task and selects the best.
type responseSelector struct {
	core     *core
	budget   *questionBudget
	zone     *delegation
	q        question
	fullName bool

	selected         *parsedResponse                // belongs to the goroutine of the task
	fallback         atomic.Pointer[parsedResponse] // the first of the best fallbacks
	heldBytes        int64                          // of fallback; belongs to the goroutine of the task
	lookupSpecific   atomic.Bool                    // a server name lookup failed for a reason in this lookup
	questionSpecific atomic.Bool                    // a server name lookup failed for a reason in the question
	bogusCount       int                            // responses rejected for their signatures
	refused          bool                           // a server has answered REFUSED
	task             *nameservers.Task              // that it is of
}

// checkSignatures checks the signatures of a response, as far as that needs no query. After an error, another server must
// be asked.
func (j *responseSelector) checkSignatures(r *parsedResponse) error {
	if j.core.validator == nil || r.kind != kindReferral && (r.kind != kindAnswer || !j.fullName || j.q.cd) {
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
	// On a retry, agreeing servers have already been found bogus.
	repeated := len(j.task.Avoid) > 0
	if p := j.fallback.Load(); unsigned && !repeated && p != nil && p.invalidSignatures && p.rcode == r.rcode && p.kind == r.kind { // two servers agree
		return nil
	}
	if j.bogusCount++; j.bogusCount > maxBogusRetries {
		return nil
	}
	r.invalidSignatures = true
	if p := j.fallback.Load(); p == nil || r.fallbackRank() > p.fallbackRank() {
		j.keepFallback(r)
	}
	if unsigned {
		j.task.EndEarly = true // it may be right below an insecure cut without a referral, which is looked up next
		return errUnprovenDenial
	}
	return nameservers.ErrUnsigned
}

// selectResponse implements Task.Judge.
func (j *responseSelector) selectResponse(m *dns.Msg, from netip.AddrPort) error {
	j.refused = j.refused || m.Rcode == dns.RcodeRefused
	r := readResponse(m, j.zone, j.q, j.fullName, time.Now())
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
			return errUnprovenDenial
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
