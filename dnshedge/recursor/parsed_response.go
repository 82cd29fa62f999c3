package recursor

import (
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// responseKind classifies a response by the next action: to accept it, to follow it, or to ask another server.
type responseKind int8

const (
	kindLame             responseKind = iota // the server does not serve the zone
	kindFailed                               // the server cannot answer
	kindMinimisedRefused                     // error RCODE for a minimised question, so that the full question must be sent
	kindReferral                             // referral to the servers of another zone
	kindAnswer                               // records, an alias, or a denial
)

// A parsedResponse is a response of a zone's server, without the records that do not answer its question or that are
// outside of the server's zone. It must not be changed once several goroutines share it.
type parsedResponse struct {
	kind              responseKind
	status            validate.Status
	keys              *validate.Keys   // keys of the zone, if this is an answer to a DNSKEY question; otherwise nil
	reason            *validate.Reason // why the response is insecure; nil for an ordinary unsigned zone
	invalidSignatures bool             // the check on arrival found invalid or missing signatures
	zone              *delegation      // zone whose server was queried
	server            netip.AddrPort   // server that sent the response
	isFallback        bool             // the response is dubious, and is used only if no better response comes
	nonAuthoritative  bool             // fallback from a recursive server, or without NS and SOA records
	rcode             int
	answer            []dns.RR      // records of the question's name, or the alias
	authority         []dns.RR      // SOA record and, if the question has DO, denial records
	aliasTarget       string        // name to resolve next; "" if the response is no alias
	ttl               time.Duration // time for which the response may be cached
	referral          *delegation   // delegation, if the response is a referral; otherwise nil
	scrubbed          int           // number of ignored records in the answer and authority sections
	cached            bool          // the response is from the cache
}

// isEmpty reports whether the response has no records, neither an answer nor a denial.
func (r *parsedResponse) isEmpty() bool { return len(r.answer)+len(r.authority) == 0 }

// fallbackRank returns the quality of a dubious or rejected response. A response with a higher rank is the better
// fallback if no response is accepted.
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

// agreesWith reports whether r confirms o, another dubious response to the same question. If two servers agree, their
// response is used, and no third server is queried.
//
// It is true if r and o have the same rank and RCODE, and r is from an authoritative server.
func (r *parsedResponse) agreesWith(o *parsedResponse) bool {
	return !r.nonAuthoritative && r.fallbackRank() == o.fallbackRank() && r.rcode == o.rcode
}

// toChainResponse converts the response to the type that package chain validates. name and qtype are the question.
func (r *parsedResponse) toChainResponse(name string, qtype uint16) *chain.Response {
	return &chain.Response{Zone: r.zone.chain, From: r.server, Name: name, Type: qtype, Rcode: r.rcode, Answer: r.answer, Authority: r.authority, Status: r.status, Keys: r.keys}
}

// applyValidation copies the result of a validation from s to r: the security status, the keys, and the records that
// were verified. s must have been created by r.toChainResponse.
func (r *parsedResponse) applyValidation(s *chain.Response) {
	r.keys = s.Keys
	r.status, r.reason, r.rcode, r.answer, r.authority = s.Status, s.Reason, s.Rcode, s.Answer, s.Authority
	if s.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(s.TTL)*time.Second)
	}
}
