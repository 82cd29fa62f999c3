package chain

import (
	"slices"

	"github.com/miekg/dns"
)

// WithoutProofs returns records without what only those want who validate, but for what was asked for: records of a type, or
// all. It leaves the slice as it is.
func WithoutProofs(rrs []dns.RR, qtype uint16) []dns.RR {
	proves := func(rr dns.RR) bool {
		switch t := rr.Header().Rrtype; t {
		case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3:
			return t != qtype && qtype != dns.TypeANY
		}
		return false
	}
	if !slices.ContainsFunc(rrs, proves) {
		return rrs
	}
	return slices.DeleteFunc(slices.Clone(rrs), proves)
}

// BesideAlias reports whether records of a type are the answer also where the name is an alias, which
// other records beside it are not (RFC 1034 §3.6.2): the alias itself, or what DNSSEC puts beside it (RFC 4034 §3, RFC 4035 §2.5, RFC 2535 §2.3.5).
func BesideAlias(qtype uint16) bool {
	switch qtype {
	case dns.TypeCNAME, dns.TypeANY, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT:
		return true
	}
	return false
}
