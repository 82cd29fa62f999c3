package recursor

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// A responseSelector evaluates the responses to one question to a zone's servers (a nameservers.Task). It accepts or
// rejects each response. It keeps the best rejected response as a fallback, for the case that no response is accepted.
type responseSelector struct {
	core     *core
	budget   *questionBudget
	zone     *delegation
	q        question
	fullName bool // false if the question is minimised

	selected         *parsedResponse                // accepted response; only for the goroutine of the task
	fallback         atomic.Pointer[parsedResponse] // best rejected response, or nil
	heldBytes        int64                          // memory of fallback, in bytes; only for the goroutine of the task
	lookupSpecific   atomic.Bool                    // a server name lookup has failed for a reason that concerns only this lookup
	questionSpecific atomic.Bool                    // a server name lookup has failed for a reason that concerns only this question
	bogusCount       int                            // number of responses that were rejected because of their signatures
	refused          bool                           // a server has responded with REFUSED
	task             *nameservers.Task              // the task whose responses it selects
}

// checkResponse accepts or rejects the response m from a server; an error rejects it. It implements
// nameservers.Task.CheckResponse. It stores an accepted response in s.selected, and may keep a rejected response as the
// fallback.
func (s *responseSelector) checkResponse(m *dns.Msg, from netip.AddrPort) error {
	s.refused = s.refused || m.Rcode == dns.RcodeRefused
	r := readResponse(m, s.zone, s.q, s.fullName, time.Now())
	r.From = from
	if r.referral != nil {
		r.referral.chain.ReferredBy = from
	}
	if s.core.validator != nil {
		r.ttl = min(r.ttl, limitTTLsBySignatures(time.Now(), maxLifetime, r.Answer, r.Authority))
		if err := s.checkSignatures(r); err != nil {
			return err
		}
	}
	switch {
	case r.isFallback:
		p := s.fallback.Load()
		if p != nil && r.agreesWith(p) {
			same := *p // a search for servers may still read the fallback, and the caller may change the response
			s.selected = &same
			return nil
		}
		if p == nil || r.fallbackRank() > p.fallbackRank() {
			s.storeFallback(r)
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
	s.selected = r
	return nil
}

// errUnprovenDenial rejects a response that lacks its SOA record, proof or signatures. The next server is then queried.
// The health of the server does not change.
var errUnprovenDenial = errors.New("recursor: denial without proof")

// checkSignatures rejects the response r if its signatures are invalid or missing, as far as the cached keys can tell.
// After an error, r must not be used, and another server must be queried. Validation must be on.
//
// It gives up on better responses and returns nil in two cases: two servers agree that there are no signatures, or
// maxBogusRetries responses were rejected. The later validation of the answer then decides.
func (s *responseSelector) checkSignatures(r *parsedResponse) error {
	if r.kind != kindReferral && (r.kind != kindAnswer || !s.fullName || s.q.cd) {
		return nil
	}
	var cut *chain.Zone
	if r.referral != nil {
		cut = r.referral.chain
	}
	err := s.core.validator.CheckResponse(s.budget.Validation(), &r.Response, cut)
	if err == nil {
		r.limitTTL()
		return nil
	}
	r.Keys = nil
	unsigned := errors.Is(err, chain.ErrUnsigned)
	// After a retry, the answers of agreeing servers were already bogus.
	repeated := len(s.task.Avoid) > 0
	if p := s.fallback.Load(); unsigned && !repeated && p != nil && p.invalidSignatures && p.Rcode == r.Rcode && p.kind == r.kind { // two servers agree
		return nil
	}
	if s.bogusCount++; s.bogusCount > maxBogusRetries {
		return nil
	}
	r.invalidSignatures, r.isUnsigned = true, unsigned
	r.isAnchored = cut != nil && s.core.validator.HasAnchorBelow(s.zone.zone, s.q.name)
	if p := s.fallback.Load(); p == nil || r.fallbackRank() > p.fallbackRank() {
		s.storeFallback(r)
	}
	if unsigned {
		// The response is valid if it is from an insecure zone without a referral. Validation searches for that zone next. If it
		// finds none, the other servers are queried again.
		s.task.EndEarly = true
		return errUnprovenDenial
	}
	return nameservers.ErrUnsigned
}

// storeFallback keeps r as the response to use if no response is accepted. It replaces the previous one. It does
// nothing if the memory for such responses is exhausted (see reserveMemory).
func (s *responseSelector) storeFallback(r *parsedResponse) {
	n := estimateRecordMemory(r.Answer, r.Authority)
	if !s.core.reserveMemory(n) {
		return
	}
	s.core.releaseMemory(s.heldBytes)
	s.heldBytes = n
	s.fallback.Store(r)
}

// fallbackAfter returns a copy of the fallback, the best response that did not end the query, as the answer to a question
// that has failed with err. If some servers were not queried, the copy is marked, so that they are queried only if its
// validation fails. The caller may change the copy: a search for servers may still read the fallback. The fallback must
// not be nil.
func (s *responseSelector) fallbackAfter(err error) *parsedResponse {
	r := *s.fallback.Load()
	if errors.Is(err, nameservers.ErrEndedEarly) {
		r.invalidSignatures = false
	}
	return &r
}

// dropResponses forgets the responses that s has kept, and releases the memory that was reserved for them. It must be
// called when the question to the zone's servers has ended. Queries that are still unanswered may use s for some time
// after that.
func (s *responseSelector) dropResponses() {
	s.core.releaseMemory(s.heldBytes)
	s.selected = nil
	if s.fallback.Load() != nil {
		s.fallback.Store(new(parsedResponse)) // an empty response still means that a server has answered
	}
}

// uncountedBytes is the maximum memory, in bytes, that a waiting question may hold for one purpose without counting it
// in core.heldBytes. A limit is needed because servers choose the size of their answers, and how long the question
// waits.
const uncountedBytes = 4 << 10

// reserveMemory reserves memory, in bytes, for a response that a question keeps while it waits for servers. It returns
// false if the memory of all questions would exceed core.maxHeldBytes. If it returns true, the caller must call
// releaseMemory with the same number.
func (c *core) reserveMemory(bytes int64) bool {
	if bytes <= uncountedBytes {
		return true
	}
	if c.heldBytes.Add(bytes) <= c.maxHeldBytes {
		return true
	}
	c.heldBytes.Add(-bytes)
	return false
}

// releaseMemory ends a reservation of memory, in bytes, by reserveMemory.
func (c *core) releaseMemory(bytes int64) {
	if bytes > uncountedBytes {
		c.heldBytes.Add(-bytes)
	}
}
