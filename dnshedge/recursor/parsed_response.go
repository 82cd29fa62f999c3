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
	kindMinimisedRefused                     // error RCODE for a minimised question: the full question is to be sent
	kindReferral                             // referral to the servers of another zone
	kindAnswer                               // answer: records, an alias, or a denial
)

// A parsedResponse has the records of a response that answer its question and that the server may provide: the
// records within its zone. All other records are ignored.
type parsedResponse struct {
	kind              responseKind
	status            validate.Status
	keys              *validate.Keys   // the keys in the answer to a DNSKEY question
	reason            *validate.Reason // why the response is insecure; may be nil
	invalidSignatures bool             // signatures were found to be invalid without a query
	zone              *delegation      // zone whose server was queried
	server            netip.AddrPort   // sender of the response
	fallback          bool             // the response is dubious: it is used only if no better response comes
	nonAuthoritative  bool             // a fallback from a recursive server, or without NS and SOA records
	rcode             int
	answer            []dns.RR // records of the question's name, or of its alias
	authority         []dns.RR // SOA record and, with DO, denial records
	aliasTarget       string   // the name to resolve next; "": no alias
	ttl               time.Duration
	referral          *delegation // the delegation of a referral
	scrubbed          int         // number of ignored records
	cached            bool        // it is from the cache
}

// isEmpty reports whether the response has neither answer records nor an SOA record.
func (r *parsedResponse) isEmpty() bool { return len(r.answer)+len(r.authority) == 0 }

// fallbackRank returns the preference of a response as a fallback. A higher rank is better.
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

// agreesWith reports whether two authoritative fallbacks have the same rank and RCODE. Then no third server is
// queried.
func (r *parsedResponse) agreesWith(o *parsedResponse) bool {
	return !r.nonAuthoritative && r.fallbackRank() == o.fallbackRank() && r.rcode == o.rcode
}

// chainResponse converts the response for validation by package chain. name and qtype are its question.
func (r *parsedResponse) chainResponse(name string, qtype uint16) *chain.Response {
	return &chain.Response{Zone: r.zone.chain, From: r.server, Name: name, Type: qtype, Rcode: r.rcode, Answer: r.answer, Authority: r.authority, Status: r.status, Keys: r.keys}
}

// applyValidation sets the security status and the verified records of r to those of s, its validated response.
func (r *parsedResponse) applyValidation(s *chain.Response) {
	r.keys = s.Keys
	r.status, r.reason, r.rcode, r.answer, r.authority = s.Status, s.Reason, s.Rcode, s.Answer, s.Authority
	if s.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(s.TTL)*time.Second)
	}
}
