// Package dnssec validates the answers of upstream resolvers with DNSSEC. It also defines the trust anchors of a
// validator and the error of a bogus answer.
//
// A [Validator] validates the answers of a forwarder's upstreams. A [recursor.Resolver] validates the answers of
// authoritative servers:
//
//	r := &recursor.Resolver{Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//	v := &dnssec.Validator{Exchanger: &dnshedge.Client{Upstreams: upstreams}, Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//
// [docs/recursor.md] describes the checks, the meaning of AD, and the remedies for a wrong clock or anchor.
//
// [recursor.Resolver]: https://pkg.go.dev/github.com/gohedge/hedge/dnshedge/recursor#Resolver [docs/recursor.md]:
// https://github.com/gohedge/hedge/blob/main/docs/recursor.md#what-is-signed
package dnssec

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// A Trust configures validation. The zero value validates with the built-in trust anchors of the root.
type Trust struct {
	// Anchors are the trust anchors: DS or DNSKEY records of any zones. Nil means the built-in keys of the root zone,
	// 20326 and 38696. Otherwise only Anchors are used.
	Anchors []dns.RR

	// Insecure are negative trust anchors (RFC 7646): nothing is validated at and below these names. If a name is below
	// both kinds of anchors, the nearer one applies. Nil means none.
	Insecure []string

	// AllowSHA1 accepts signatures that use SHA-1. Without it, zones with only such signatures are insecure, like unsigned
	// zones (RFC 9905).
	AllowSHA1 bool

	// Report validates answers and counts the results, but returns bogus answers without AD in place of a failure. It
	// shows which answers would fail.
	Report bool

	// Off disables validation. AD is never set, and DO, CD and signatures are passed on.
	Off bool
}

// Security is the security status of an answer (RFC 4035 §4.3).
type Security uint8

const (
	// Unchecked answers were not validated: validation is off, the question had CD, or it failed before validation.
	Unchecked Security = iota
	// Secure answers have valid signatures, in an unbroken chain from a trust anchor.
	Secure
	// Insecure answers are proven to be unsigned, are signed only with unsupported algorithms, or are outside of all trust
	// anchors.
	Insecure
	// Bogus answers lack a valid signature although the zone is signed.
	Bogus
)

// String returns the status in lower case, for example "secure".
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

// An Error describes why an answer is bogus.
type Error struct {
	EDE    uint16         // info code of the extended error (RFC 8914)
	Text   string         // description of the fault, in one line
	Zone   string         // zone whose keys should have signed the answer; "": unknown
	Name   string         // owner of the invalid records
	Type   uint16         // type of the invalid records
	Server netip.AddrPort // sender of the response; invalid: unknown
	Limit  string         // name of the limit that was reached; "": none
}

func (e *Error) Error() string { return fmt.Sprintf("dnssec: %s", e.Text) }
