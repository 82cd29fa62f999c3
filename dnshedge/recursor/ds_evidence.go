package recursor

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// readDSEvidence returns the records in a referral that prove whether the child zone called name is signed. These are
// DS records, or else the NSEC and NSEC3 records that prove that there are none, with signatures.
//
// ns is the authority section of the referral, and parent is the zone that has sent it.
func readDSEvidence(ns []dns.RR, name, parent string) []dns.RR {
	var ds, denial []dns.RR
	for _, rr := range ns {
		h := rr.Header()
		owner := dnsname.ToLower(h.Name)
		if h.Class != dns.ClassINET || !dnsname.IsBelow(owner, parent) && owner != parent {
			continue
		}
		switch t := coveredType(rr); {
		case t == dns.TypeDS && owner == name:
			ds = append(ds, rr)
		case t == dns.TypeNSEC || t == dns.TypeNSEC3:
			denial = append(denial, rr)
		}
	}
	if slices.ContainsFunc(ds, isDS) {
		denial = nil
	}
	all := append(ds, denial...)
	for _, rr := range all {
		rr.Header().Ttl = validTTL(rr)
	}
	return all[:min(len(all), nameservers.MaxEvidence)]
}

// isDS reports whether rr is a DS record, and not a signature of one.
func isDS(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDS }

// coveredType returns the type covered by an RRSIG record. For another record, it returns the type of the record.
func coveredType(rr dns.RR) uint16 {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered
	}
	return rr.Header().Rrtype
}

// An rrsetKey identifies an RRset of class IN by its owner name and type.
type rrsetKey struct {
	name string // in lower case
	typ  uint16
}

// limitTTLsBySignatures lowers the TTLs of unverified records to the lifetime of their signatures, so that they are not
// cached for longer. It returns the lowest TTL of the signed records, or maxTTL if there are none.
//
// The lifetime is the minimum of the RRSIG's TTL, its original TTL, and the time until it expires (at least 1 s). If an
// RRset has several signatures, choose selects one of two lifetimes, in seconds.
func limitTTLsBySignatures(now time.Time, choose func(a, b uint32) uint32, sections ...[]dns.RR) time.Duration {
	ends := make(map[rrsetKey]uint32)
	for _, rrs := range sections {
		for _, rr := range rrs {
			sig, ok := rr.(*dns.RRSIG)
			if !ok {
				continue
			}
			left := max(1, int32(sig.Expiration-uint32(now.Unix()))) // in serial arithmetic (RFC 4034 §3.1.5)
			end := min(validTTL(sig), sig.OrigTtl, uint32(left))
			s := rrsetKey{dnsname.ToLower(sig.Hdr.Name), sig.TypeCovered}
			if old, ok := ends[s]; ok {
				end = choose(old, end)
			}
			ends[s] = end
		}
	}
	ttl := uint32(maxTTL / time.Second)
	for _, rrs := range sections {
		for _, rr := range rrs {
			h := rr.Header()
			if end, ok := ends[rrsetKey{dnsname.ToLower(h.Name), coveredType(rr)}]; ok {
				h.Ttl = min(h.Ttl, end)
				ttl = min(ttl, h.Ttl)
			}
		}
	}
	return time.Duration(ttl) * time.Second
}

// chooseLongest returns the longer of two lifetimes, for limitTTLsBySignatures.
func chooseLongest(a, b uint32) uint32 { return max(a, b) }

// chooseShortest returns the shorter of two lifetimes, for limitTTLsBySignatures.
func chooseShortest(a, b uint32) uint32 { return min(a, b) }

// packRecords returns the wire format of each record, and omits records that cannot be packed. It does not change rrs,
// which other goroutines may read.
func packRecords(rrs []dns.RR) (all [][]byte) {
	for _, rr := range rrs {
		rr = dns.Copy(rr)
		b := make([]byte, dns.Len(rr)+1)
		if n, err := dns.PackRR(rr, b, 0, nil, false); err == nil {
			all = append(all, b[:n])
		}
	}
	return all
}

// unpackRecords parses records in wire format, the result of packRecords. It omits invalid records.
func unpackRecords(all [][]byte) (rrs []dns.RR) {
	for _, b := range all {
		if rr, n, err := dns.UnpackRR(b, 0); err == nil && n == len(b) {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}
