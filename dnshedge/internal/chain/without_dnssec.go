package chain

import (
	"slices"

	"github.com/miekg/dns"
)

// WithoutDNSSECRecords returns the records without RRSIG, NSEC and NSEC3 records, for a client that did not set DO.
// Records of the type qtype remain. If qtype is ANY, all records remain. It does not modify rrs.
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
