package recursor

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// maxTTL is the maximum time for which data is cached (RFC 8767 §4).
const maxTTL = 7 * 24 * time.Hour

// isDS reports whether rr is a DS record, and not a signature of one.
func isDS(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDS }

// An rrsetKey identifies an RRset of class IN by its owner name and type.
type rrsetKey struct {
	name string // in lower case
	typ  uint16
}

// limitTTLsBySignatures lowers the TTLs of signed records to the lifetime of their signatures, so that unverified
// records are not cached for longer. It returns the lowest TTL of the signed records, or maxTTL if no record is signed.
//
// The lifetime of a signature is the lowest of its TTL, its original TTL, and the time from now until it expires. It is
// at least 1 s. For an RRset with several signatures, choose picks one of two lifetimes, in seconds: minLifetime or
// maxLifetime.
func limitTTLsBySignatures(now time.Time, choose func(a, b uint32) uint32, sections ...[]dns.RR) time.Duration {
	ends := make(map[rrsetKey]uint32)
	for _, rrs := range sections {
		for _, rr := range rrs {
			sig, ok := rr.(*dns.RRSIG)
			if !ok {
				continue
			}
			left := max(1, int32(sig.Expiration-uint32(now.Unix()))) // in serial arithmetic (RFC 4034 §3.1.5)
			end := min(effectiveTTL(sig), sig.OrigTtl, uint32(left))
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
			if end, ok := ends[rrsetKey{dnsname.ToLower(h.Name), chain.CoveredType(rr)}]; ok {
				h.Ttl = min(h.Ttl, end)
				ttl = min(ttl, h.Ttl)
			}
		}
	}
	return time.Duration(ttl) * time.Second
}

// maxLifetime returns the longer of two signature lifetimes, in seconds. It is an argument of limitTTLsBySignatures.
func maxLifetime(a, b uint32) uint32 { return max(a, b) }

// minLifetime returns the shorter of two signature lifetimes, in seconds. It is an argument of limitTTLsBySignatures.
func minLifetime(a, b uint32) uint32 { return min(a, b) }

// packRecords returns each record in wire format, for an export. It omits records that cannot be packed. It does not
// change rrs, which other goroutines may read.
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

// unpackRecords parses the records of an export, which packRecords has converted to wire format. It omits invalid
// records.
func unpackRecords(all [][]byte) (rrs []dns.RR) {
	for _, b := range all {
		if rr, n, err := dns.UnpackRR(b, 0); err == nil && n == len(b) {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}

// recordAddress returns the address in an A or AAAA record of class IN. The boolean is false for any other record.
func recordAddress(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		a, ok := netip.AddrFromSlice(rr.A)
		return a.Unmap(), ok && rr.Hdr.Class == dns.ClassINET
	case *dns.AAAA:
		a, ok := netip.AddrFromSlice(rr.AAAA)
		return a, ok && rr.Hdr.Class == dns.ClassINET
	}
	return netip.Addr{}, false
}

// effectiveTTL returns the TTL of a record in seconds. A TTL of 2^31 or more counts as 0 (RFC 2181 §8).
func effectiveTTL(rr dns.RR) uint32 {
	if ttl := rr.Header().Ttl; ttl < 1<<31 {
		return ttl
	}
	return 0
}

// extractAddresses returns the addresses in A and AAAA records of class IN, but at most nameservers.MaxAddrs.
func extractAddresses(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := recordAddress(rr); ok && len(addrs) < nameservers.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// equalizeTTLs sets the TTL of each record to the lowest TTL in its RRset (RFC 2181 §5.2). All records must have the
// same owner name. RRSIG records that cover different types count as different RRsets.
func equalizeTTLs(rrs []dns.RR) {
	type set struct{ typ, covered uint16 }
	setOf := func(rr dns.RR) set {
		if sig, ok := rr.(*dns.RRSIG); ok {
			return set{dns.TypeRRSIG, sig.TypeCovered}
		}
		return set{rr.Header().Rrtype, 0}
	}
	lowest := make(map[set]uint32, 1)
	for _, rr := range rrs {
		k, ttl := setOf(rr), effectiveTTL(rr)
		if old, ok := lowest[k]; ok {
			ttl = min(ttl, old)
		}
		lowest[k] = ttl
	}
	for _, rr := range rrs {
		rr.Header().Ttl = lowest[setOf(rr)]
	}
}

// maxLinearRecords is the maximum number of records that removeDuplicates compares with each other. It uses an index
// for more records.
const maxLinearRecords = 8

// removeDuplicates returns the records without duplicates (RFC 2181 §5). The first of several equal records remains,
// with the lowest TTL of all. The result reuses the memory of rrs.
func removeDuplicates(rrs []dns.RR) []dns.RR {
	before := func(kept []dns.RR, rr dns.RR) int {
		if i := slices.IndexFunc(kept, func(old dns.RR) bool { return dns.IsDuplicate(old, rr) }); i >= 0 {
			return i
		}
		return len(kept)
	}
	if len(rrs) > maxLinearRecords {
		before = newDuplicateFinder(len(rrs))
	}
	kept := rrs[:0]
	for _, rr := range rrs {
		if i := before(kept, rr); i < len(kept) {
			h := kept[i].Header()
			h.Ttl = min(h.Ttl, rr.Header().Ttl)
			continue
		}
		kept = append(kept, rr)
	}
	clear(rrs[len(kept):])
	return kept
}

// newDuplicateFinder returns a function that finds duplicates in a list of about n records. The function returns the
// index in kept of a record equal to rr, apart from the TTL. If there is none, it returns len(kept). It must be called
// for all records in order.
//
// Its time per call is constant. Unlike dns.IsDuplicate, it does not ignore the letter case of names in the data of
// records.
func newDuplicateFinder(n int) func(kept []dns.RR, rr dns.RR) int {
	seen := make(map[string]int, n)
	owners := make(map[string]uint32)
	last, owner := "", uint32(0) // owner name of the previous record, and its number
	buf := make([]byte, 512)
	return func(kept []dns.RR, rr dns.RR) int {
		h := rr.Header()
		name := h.Name
		if name != last {
			var ok bool
			if owner, ok = owners[dnsname.ToLower(name)]; !ok {
				owner = uint32(len(owners))
				owners[dnsname.ToLower(name)] = owner
			}
			last = name
		}
		ttl := h.Ttl
		h.Name, h.Ttl = ".", owner // stand-ins in the packed record
		if size := dns.Len(rr); size > len(buf) {
			buf = make([]byte, 2*size)
		}
		end, err := dns.PackRR(rr, buf, 0, nil, false)
		h.Name, h.Ttl = name, ttl
		if err != nil {
			return len(kept) // cannot be compared
		}
		if i, ok := seen[string(buf[:end])]; ok {
			return i
		}
		seen[string(buf[:end])] = len(kept)
		return len(kept)
	}
}

// estimateRecordMemory returns the estimated memory of the records in all sections, in bytes.
func estimateRecordMemory(sections ...[]dns.RR) (n int64) {
	for _, rrs := range sections {
		for _, rr := range rrs {
			n += 32 + estimateValueMemory(reflect.ValueOf(rr))
		}
	}
	return n
}

// estimateValueMemory returns the estimated memory that v refers to, in bytes. It does not use the wire format: a
// record that is small in a message may be large in memory, for example if it has many empty strings.
func estimateValueMemory(v reflect.Value) int64 {
	var n int64
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = int64(v.Elem().Type().Size()) + estimateValueMemory(v.Elem())
		}
	case reflect.String:
		n = int64(v.Len())
	case reflect.Slice:
		n = int64(v.Cap()) * int64(v.Type().Elem().Size())
		switch v.Type().Elem().Kind() {
		case reflect.String, reflect.Slice, reflect.Struct, reflect.Pointer, reflect.Interface:
			for i := range v.Len() {
				n += estimateValueMemory(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += estimateValueMemory(v.Field(i))
		}
	}
	return n
}
