package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

// maxLinearRecords is the maximum number of records that removeDuplicates compares with each other. It uses an index
// for more records.
const maxLinearRecords = 8

// removeDuplicates returns the records without duplicates (RFC 2181 §5). The first of several equal records remains,
// with the lowest TTL of all. The result reuses the memory of rrs.
func removeDuplicates(rrs []dns.RR) []dns.RR {
	before := findDuplicate
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

// findDuplicate returns the index in kept of a record equal to rr, apart from the TTL. It returns len(kept) if there is
// none.
func findDuplicate(kept []dns.RR, rr dns.RR) int {
	for i, old := range kept {
		if dns.IsDuplicate(old, rr) {
			return i
		}
	}
	return len(kept)
}

// newDuplicateFinder returns a function with the same parameters and result as findDuplicate, but with constant time
// per call. The function must be called for all records in order. n is the approximate number of records.
//
// Unlike findDuplicate, the function does not ignore the letter case of names in the data of records.
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
