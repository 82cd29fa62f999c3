package recursor

import (
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// kind is what a response amounts to.
type responseKind int8

const (
	kindLame             responseKind = iota // the server does not serve the zone
	kindFailed                               // it cannot answer the question
	kindMinimisedRefused                     // to a name that is not the whole one: ask the whole name
	kindReferral                             // another zone's servers know
	kindAnswer                               // of records, an alias, or that there are none
)

// parsedResponse is what is believed of a response.
type parsedResponse struct {
	kind             responseKind
	status           validate.Status
	keys             *validate.Keys   // that were asked for
	reason           *validate.Reason // the status is insecure; may be nil
	badlySigned      bool             // it is not signed as it ought to be, which has been seen at once
	zone             *delegation      // whose server has sent it
	server           netip.AddrPort   // that server
	fallback         bool             // the server is lame, but this is better than nothing
	nonAuthoritative bool             // of them, one by a server that answers for others, or does not say for whom
	rcode            int
	answer           []dns.RR // what the name of the question has, or the alias that it is
	authority        []dns.RR // why there is no answer; for DO, what proves it
	aliasTarget      string   // the name to go on with, which the alias points to; or ""
	ttl              time.Duration
	referral         *delegation // that a referral is to
	scrubbed         int         // records that were not believed
	cached           bool        // it is of the cache
}

// bare reports whether there is nothing in a reply: neither records nor why there are none.
func (r *parsedResponse) isEmpty() bool { return len(r.answer)+len(r.authority) == 0 }

// fallbackRank orders poor verdicts: more is better.
func (r *parsedResponse) fallbackRank() int {
	switch {
	case r.badlySigned:
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

// agreesWith reports whether two servers with authority say as much: no other one will say more.
func (r *parsedResponse) agreesWith(o *parsedResponse) bool {
	return !r.nonAuthoritative && r.fallbackRank() == o.fallbackRank() && r.rcode == o.rcode
}

// said is what a verdict says.
func (r *parsedResponse) chainResponse(name string, qtype uint16) *chain.Response {
	return &chain.Response{Zone: r.zone.chain, From: r.server, Name: name, Type: qtype, Rcode: r.rcode, Answer: r.answer, Authority: r.authority, Status: r.status, Keys: r.keys}
}

// applyValidation takes what validation has left of a verdict.
func (r *parsedResponse) applyValidation(s *chain.Response) {
	r.keys = s.Keys
	r.status, r.reason, r.rcode, r.answer, r.authority = s.Status, s.Reason, s.Rcode, s.Answer, s.Authority
	if s.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(s.TTL)*time.Second)
	}
}
