package recursor

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// readDSEvidence returns the DS records of a referral, or their denial, with signatures. It omits records that the proof
// does not need.
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

func isDS(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDS }

// coveredType returns the type of a record, or the type that a signature covers.
func coveredType(rr dns.RR) uint16 {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered
	}
	return rr.Header().Rrtype
}

// An rrsetKey identifies an RRset.
type rrsetKey struct {
	name string // in lower case
	typ  uint16
}

// limitTTLsBySignatures lowers TTLs of unverified records to the lifetime of their signatures: the RRSIG's TTL, the
// original TTL, and the seconds until it expires, at least 1. choose selects one of several signatures of an RRset. It
// returns the lowest TTL of signed records, or maxTTL.
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

func chooseLongest(a, b uint32) uint32  { return max(a, b) }
func chooseShortest(a, b uint32) uint32 { return min(a, b) }

// packRecords returns records in wire format. It copies them first, because others read them and PackRR writes to its
// argument.
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

func unpackRecords(all [][]byte) (rrs []dns.RR) {
	for _, b := range all {
		if rr, n, err := dns.UnpackRR(b, 0); err == nil && n == len(b) {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}
