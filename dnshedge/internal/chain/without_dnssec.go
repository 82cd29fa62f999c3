package chain

import (
	"slices"

	"github.com/miekg/dns"
)

// WithoutDNSSECRecords returns records without what only those want who validate, but for what was asked for: records of a type, or
// all. It leaves the slice as it is.
func WithoutDNSSECRecords(rrs []dns.RR, qtype uint16) []dns.RR {
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
