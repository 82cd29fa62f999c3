// Package dnssec validates the answers of other resolvers, and says whom a validator of DNSSEC trusts, and why an answer is not to be trusted.
//
// A [recursor.Resolver] validates what the servers of zones say, and a [Validator] what the resolvers say that a forwarder asks:
//
//	r := &recursor.Resolver{Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//	v := &dnssec.Validator{Exchanger: &dnshedge.Client{Upstreams: upstreams}, Trust: dnssec.Trust{Insecure: []string{"corp.example"}}}
//
// What they check, what AD means, and what to do when a clock or an anchor is wrong is in [docs/recursor.md].
//
// [recursor.Resolver]: https://pkg.go.dev/github.com/gohedge/hedge/dnshedge/recursor#Resolver
// [docs/recursor.md]: https://github.com/gohedge/hedge/blob/main/docs/recursor.md#what-is-signed
package dnssec

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// Trust is what a validator takes as given. The zero value validates with the root's built-in keys.
type Trust struct {
	// Anchors are where chains of trust begin: DS or DNSKEY records, of any zones. Nil: the keys of the root
	// zone that are built in, 20326 and 38696. Not nil: nothing but these.
	Anchors []dns.RR

	// Insecure are names below which, and at which, nothing is validated (negative trust anchors, RFC 7646). Of an anchor and
	// such a name, the nearer one counts. Nil: none.
	Insecure []string

	// AllowSHA1 takes signatures made with SHA-1 for valid. Without it, zones that have no others are insecure, as if they were not
	// signed (RFC 9905).
	AllowSHA1 bool

	// Report validates and counts, and answers all the same: an answer that is bogus has no AD, and is no failure. It
	// shows beforehand what would fail.
	Report bool

	// Off turns validation off: AD is never set, and DO, CD and signatures pass.
	Off bool
}

// Security is what validation says of an answer (RFC 4035 §4.3).
type Security uint8

const (
	// Unchecked answers were not validated: validation is off, the question had CD, or it failed before.
	Unchecked Security = iota
	// Secure answers are signed, in an unbroken chain from an anchor on.
	Secure
	// Insecure answers are proven to be unsigned, or signed in a way that is not supported, or there is no anchor for them.
	Insecure
	// Bogus answers ought to be signed, and are not, or not rightly.
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

// Error is why an answer is bogus.
type Error struct {
	EDE    uint16         // the code of the extended error (RFC 8914) that the caller is told
	Text   string         // what is wrong, in one line
	Zone   string         // whose keys should have signed it; "": not known
	Name   string         // of the records that are wrong
	Type   uint16         // theirs
	Server netip.AddrPort // whose response it was; invalid: not known
	Limit  string         // the limit that was reached; "": none
}

func (e *Error) Error() string { return fmt.Sprintf("dnssec: %s", e.Text) }
