// Package dnssec validates the answers of other resolvers. It also defines the trust anchors of a validator and the error
// of a bogus answer.
//
// A [recursor.Resolver] validates the answers of zones' servers, and a [Validator] the answers of the resolvers that a
// forwarder asks:
//
//	r := &recursor.Resolver{Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//	v := &dnssec.Validator{Exchanger: &dnshedge.Client{Upstreams: upstreams}, Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//
// [docs/recursor.md] describes the checks, the meaning of AD, and the remedies for a wrong clock or anchor.
//
// [recursor.Resolver]: https://pkg.go.dev/github.com/gohedge/hedge/dnshedge/recursor#Resolver
// [docs/recursor.md]: https://github.com/gohedge/hedge/blob/main/docs/recursor.md#what-is-signed
package dnssec

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// Trust configures a validator. The zero value validates with the built-in keys of the root.
type Trust struct {
	// Anchors are the trust anchors: DS or DNSKEY records of any zones. Nil: the built-in keys of the root zone, 20326 and
	// 38696. Otherwise these are not used.
	Anchors []dns.RR

	// Insecure are names at and below which nothing is validated (negative trust anchors, RFC 7646). The nearer of an
	// anchor and a negative anchor counts. Nil: none.
	Insecure []string

	// AllowSHA1 accepts signatures made with SHA-1. Without it, zones with only these are insecure, like unsigned zones
	// (RFC 9905).
	AllowSHA1 bool

	// Report validates and counts without failing: a bogus answer is returned without AD. It shows beforehand which
	// answers would fail.
	Report bool

	// Off turns validation off: AD is never set, and DO, CD and signatures are passed on.
	Off bool
}

// Security is the security status of an answer (RFC 4035 §4.3).
type Security uint8

const (
	// Unchecked answers were not validated: validation is off, the question had CD, or it failed before.
	Unchecked Security = iota
	// Secure answers are signed, in an unbroken chain from a trust anchor.
	Secure
	// Insecure answers are proven to be unsigned, signed with unsupported algorithms only, or outside of all trust
	// anchors.
	Insecure
	// Bogus answers lack a valid signature although the zone is signed.
	Bogus
)

func (s Security) String() string {
	switch s {
	case Secure:
		return "secure"
	case Insecure:
		return "insecure"
	case Bogus:
		return "bogus"
	}
	return "unchecked"
}

// An Error is the reason why an answer is bogus.
type Error struct {
	EDE    uint16         // info code of the extended error (RFC 8914)
	Text   string         // the defect, in one line
	Zone   string         // whose keys should have signed it; "": unknown
	Name   string         // owner of the invalid records
	Type   uint16         // of the invalid records
	Server netip.AddrPort // sender of the response; invalid: unknown
	Limit  string         // limit that was reached; "": none
}

func (e *Error) Error() string { return fmt.Sprintf("dnssec: %s", e.Text) }
