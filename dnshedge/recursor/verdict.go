package recursor

import (
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// kind is what a response amounts to.
type kind int8

const (
	isLame     kind = iota // the server does not serve the zone
	isFailed               // it cannot answer the question
	isRefused              // to a name that is not the whole one: ask the whole name
	isReferral             // another zone's servers know
	isAnswer               // of records, an alias, or that there are none
)

// verdict is what is believed of a response.
type verdict struct {
	kind      kind
	status    validate.Status
	keys      *validate.Keys   // that were asked for
	why       *validate.Reason // the status is insecure; may be nil
	bad       bool             // it is not signed as it ought to be, which has been seen at once
	zone      *delegation      // whose server has sent it
	from      netip.AddrPort   // that server
	poor      bool             // the server is lame, but this is better than nothing
	foreign   bool             // of them, one by a server that answers for others, or does not say for whom
	rcode     int
	answer    []dns.RR // what the name of the question has, or the alias that it is
	authority []dns.RR // why there is no answer; for DO, what proves it
	next      string   // the name to go on with, which the alias points to; or ""
	ttl       time.Duration
	cut       *delegation // that a referral is to
	scrubbed  int         // records that were not believed
	kept      bool        // it is of the cache
}

// bare reports whether there is nothing in a reply: neither records nor why there are none.
func (r *verdict) bare() bool { return len(r.answer)+len(r.authority) == 0 }

// worth orders poor verdicts: more is better.
func (r *verdict) worth() int {
	switch {
	case r.bad:
		return -2
	case r.foreign:
		return -1
	case len(r.answer) > 0:
		return 3
	case r.cut != nil:
		return 2
	case len(r.authority) > 0:
		return 1
	}
	return 0
}

// agrees reports whether two servers with authority say as much: no other one will say more.
func (r *verdict) agrees(o *verdict) bool {
	return !r.foreign && r.worth() == o.worth() && r.rcode == o.rcode
}

// said is what a verdict says.
func (r *verdict) said(name string, qtype uint16) *chain.Said {
	return &chain.Said{Zone: r.zone.chain, From: r.from, Name: name, Type: qtype, Rcode: r.rcode, Answer: r.answer, Authority: r.authority, Status: r.status, Keys: r.keys}
}

// judged takes what validation has left of a verdict.
func (r *verdict) judged(s *chain.Said) {
	r.keys = s.Keys
	r.status, r.why, r.rcode, r.answer, r.authority = s.Status, s.Why, s.Rcode, s.Answer, s.Authority
	if s.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(s.TTL)*time.Second)
	}
}
