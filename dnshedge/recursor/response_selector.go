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

// keepFallback makes r the fallback, in place of the previous one, if there is memory for it.
func (j *responseSelector) keepFallback(r *parsedResponse) {
	n := estimateRecordMemory(r.answer, r.authority)
	if !j.core.reserveMemory(n) {
		return
	}
	j.core.releaseMemory(j.heldBytes)
	j.heldBytes = n
	j.fallback.Store(r)
}

// releaseMemory releases the memory of the responses when the task has ended. Losing queries may still refer to j.
func (j *responseSelector) releaseMemory() {
	j.core.releaseMemory(j.heldBytes)
	j.selected = nil
	if j.fallback.Load() != nil {
		j.fallback.Store(new(parsedResponse)) // an empty response still means that a server has answered
	}
}

// errUnprovenDenial rejects a denial without SOA record or without proof. The next server is queried. It has no
// effect on other questions.
var errUnprovenDenial = errors.New("recursor: denial without proof")

// A responseSelector evaluates the responses to one task. It accepts a response or rejects it, and keeps the best
// rejected response as a fallback.
type responseSelector struct {
	core     *core
	budget   *questionBudget
	zone     *delegation
	q        question
	fullName bool

	selected         *parsedResponse                // accepted response; belongs to the goroutine of the task
	fallback         atomic.Pointer[parsedResponse] // best rejected response
	heldBytes        int64                          // memory of fallback; belongs to the goroutine of the task
	lookupSpecific   atomic.Bool                    // a server name lookup failed for a reason in this lookup
	questionSpecific atomic.Bool                    // a server name lookup failed for a reason in the question
	bogusCount       int                            // responses rejected for their signatures
	refused          bool                           // a server has answered REFUSED
	task             *nameservers.Task              // the task whose responses it selects
}

// checkSignatures checks the signatures of a response, as far as that needs no query. An error means that another
// server must be queried.
//
// It returns nil for invalid signatures if two servers agree that there are none, or after maxBogusRetries rejected
// responses. Validation then decides.
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
	// After a retry, the answers of agreeing servers were already bogus.
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
		j.task.EndEarly = true // the response may be right below an insecure zone cut that no referral has shown; validation searches for it next
		return errUnprovenDenial
	}
	return nameservers.ErrUnsigned
}

// selectResponse implements nameservers.Task.CheckResponse. It stores an accepted response in selected.
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
