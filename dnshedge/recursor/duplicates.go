package recursor

import (
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

// maxLinearRecords are compared with one another; of more, each is looked up among those before it.
const maxLinearRecords = 8

// removeDuplicates returns the records without those that are there twice but for the TTL (RFC 2181 §5),
// of which the lowest counts. It uses the slice again.
func removeDuplicates(rrs []dns.RR) []dns.RR {
	before := findAmongFew
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

// findAmongFew returns which of the records that are kept is rr as well, or their number.
func findAmongFew(kept []dns.RR, rr dns.RR) int {
	for i, old := range kept {
		if dns.IsDuplicate(old, rr) {
			return i
		}
	}
	return len(kept)
}

// newDuplicateFinder returns a function that does the same for n records at most, one after another,
// in a time that does not depend on how many are kept. A name in the data of a record that is
// spelled in another way makes it another record.
func newDuplicateFinder(n int) func(kept []dns.RR, rr dns.RR) int {
	seen := make(map[string]int, n)
	owners := make(map[string]uint32)
	last, owner := "", uint32(0) // the name of the record before, and its number
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
		h.Name, h.Ttl = ".", owner // which the packed record has in their places
		if size := dns.Len(rr); size > len(buf) {
			buf = make([]byte, 2*size)
		}
		end, err := dns.PackRR(rr, buf, 0, nil, false)
		h.Name, h.Ttl = name, ttl
		if err != nil {
			return len(kept) // nobody can tell
		}
		if i, ok := seen[string(buf[:end])]; ok {
			return i
		}
		seen[string(buf[:end])] = len(kept)
		return len(kept)
	}
}
