package recursor

import (
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// responseKind classifies a response.
type responseKind int8

const (
	kindLame             responseKind = iota // the server does not serve the zone
	kindFailed                               // the server cannot answer
	kindMinimisedRefused                     // to a minimised question: ask the whole name
	kindReferral                             // to another zone's servers
	kindAnswer                               // records, an alias, or a denial
)

// A parsedResponse has the trusted part of a response.
type parsedResponse struct {
	kind              responseKind
	status            validate.Status
	keys              *validate.Keys   // of a DNSKEY question
	reason            *validate.Reason // why it is insecure; may be nil
	invalidSignatures bool             // found without a query to be signed wrongly
	zone              *delegation      // zone that was asked
	server            netip.AddrPort   // sender of the response
	fallback          bool             // the server is lame or incomplete; used if no better response comes
	nonAuthoritative  bool             // a fallback of a recursive server, or one without NS and SOA
	rcode             int
	answer            []dns.RR // records of the question's name, or its alias
	authority         []dns.RR // SOA record and, with DO, denial records
	aliasTarget       string   // the name to resolve next; or ""
	ttl               time.Duration
	referral          *delegation // the delegation of a referral
	scrubbed          int         // records that were ignored
	cached            bool        // it is from the cache
}

// isEmpty reports whether the response has neither records nor an SOA record.
func (r *parsedResponse) isEmpty() bool { return len(r.answer)+len(r.authority) == 0 }

// fallbackRank orders fallbacks; more is better.
func (r *parsedResponse) fallbackRank() int {
	switch {
	case r.invalidSignatures:
		return -2
	case r.nonAuthoritative:
		return -1
	case len(r.answer) > 0:
		return 3
	case r.referral != nil:
		return 2
	case len(r.authority) > 0:
		return 1
	}
	return 0
}

// agreesWith reports whether two authoritative fallbacks are equal in rank and rcode: a third server is not asked.
func (r *parsedResponse) agreesWith(o *parsedResponse) bool {
	return !r.nonAuthoritative && r.fallbackRank() == o.fallbackRank() && r.rcode == o.rcode
}

// chainResponse returns the response for validation.
func (r *parsedResponse) chainResponse(name string, qtype uint16) *chain.Response {
	return &chain.Response{Zone: r.zone.chain, From: r.server, Name: name, Type: qtype, Rcode: r.rcode, Answer: r.answer, Authority: r.authority, Status: r.status, Keys: r.keys}
}

// applyValidation takes the status and the verified records of a validated response.
func (r *parsedResponse) applyValidation(s *chain.Response) {
	r.keys = s.Keys
	r.status, r.reason, r.rcode, r.answer, r.authority = s.Status, s.Reason, s.Rcode, s.Answer, s.Authority
	if s.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(s.TTL)*time.Second)
	}
}
