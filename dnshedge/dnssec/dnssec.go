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
// [recursor.Resolver]: https://pkg.go.dev/github.com/gohedge/hedge/dnshedge/recursor#Resolver
// [docs/recursor.md]: https://github.com/gohedge/hedge/blob/main/docs/recursor.md#what-is-signed
package dnssec

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// A Trust configures the trust anchors and the mode of DNSSEC validation. The zero value validates with the built-in
// trust anchors of the root.
type Trust struct {
	// Anchors are the trust anchors, which are DS or DNSKEY records of any zones. If Anchors is nil, the built-in keys of
	// the root zone with the key tags 20326 and 38696 are used. Otherwise only Anchors are used.
	//
	// The nearest anchor above a name alone decides: the zones above that anchor are not considered. So an anchor for a name
	// that is no zone makes all names below it bogus.
	Anchors []dns.RR

	// Insecure are the names of negative trust anchors (RFC 7646): zones at and below these names are not validated.
	//
	// If a name is below both a trust anchor and a negative trust anchor, the nearer anchor applies. Nil means no negative
	// trust anchors.
	Insecure []string

	// AllowSHA1 accepts signatures that use SHA-1. If it is false, zones that have only signatures of this kind are
	// insecure, like unsigned zones (RFC 9905).
	AllowSHA1 bool

	// RequireAllAlgorithms requires a valid signature by each supported algorithm of a zone's DS records or trust anchors,
	// so that an attacker who has broken one of them cannot forge answers. A zone that changes its algorithm, and does not
	// sign with both meanwhile, is then bogus. If it is false, one valid signature suffices (RFC 6840 §5.11).
	RequireAllAlgorithms bool

	// Report is a dry run: answers are validated and the results are counted, but a bogus answer is returned without AD,
	// and not as a failure. The statistics then show which answers would fail.
	Report bool

	// Off disables validation. AD is never set in responses. DO and CD are passed on to upstreams, and signatures to
	// clients.
	Off bool
}

// Security is the security status of an answer: Unchecked, Secure, Insecure or Bogus (RFC 4035 §4.3). The zero value is
// Unchecked.
type Security uint8

const (
	// Unchecked answers were not validated. Validation was off, the question had CD, or the question failed before
	// validation.
	Unchecked Security = iota
	// Secure answers have valid signatures, in an unbroken chain of trust from a trust anchor.
	Secure
	// Insecure answers are proven to be unsigned, are signed only with unsupported algorithms, or are not below a trust
	// anchor.
	Insecure
	// Bogus answers have no valid signature although their zone is signed.
	Bogus
)

// String returns the status in lower case, for example "secure". For unknown values it returns "unchecked".
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

// An Error describes why an answer is bogus, or which limit prevented its validation.
type Error struct {
	EDE    uint16         // info code of the extended DNS error (RFC 8914)
	Text   string         // description of the fault, in one line
	Zone   string         // zone whose keys should have signed the answer; "" if unknown
	Name   string         // owner name of the invalid records
	Type   uint16         // type of the invalid records
	Server netip.AddrPort // server that sent the response; the zero AddrPort if unknown
	Limit  string         // name of the limit that prevented validation; "" if none did
}

func (e *Error) Error() string { return fmt.Sprintf("dnssec: %s", e.Text) }
