package validate

import (
	"slices"

	"github.com/miekg/dns"
)

// AuthenticRecords returns the records of an RRset that Verify has found right with the keys of a zone, and after them its RRSIG records. Nothing in them is from a field that no
// signature covers: the owner is in lower case, and all TTLs are ttl, or v.TTL if that is less. RRSIG records that the zone cannot have made are left
// out; others may be wrong. The records are copies.
func (s *RRset) AuthenticRecords(k *Keys, v Verified, ttl uint32) []dns.RR {
	c := s.canonicalForm()
	owner := c.owner.String()
	ttl = min(ttl, v.TTL)
	rrs := make([]dns.RR, 0, len(s.Records)+len(c.sigs))
	add := func(rr dns.RR) {
		rr = dns.Copy(rr)
		h := rr.Header()
		h.Name, h.Ttl = owner, ttl
		rrs = append(rrs, rr)
	}
	for _, rr := range s.Records {
		add(rr)
	}
	for i := range c.sigs {
		if g := &c.sigs[i]; g.isAllowedFor(c.owner, s.Type, k.zone) {
			add(s.Sigs[g.index])
		}
	}
	return slices.Clip(rrs)
}
