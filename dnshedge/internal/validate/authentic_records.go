package validate

import (
	"slices"

	"github.com/miekg/dns"
)

// AuthenticRecords returns copies of the records of the RRset, followed by its RRSIG records. v is the result of Verify
// with the keys k. The signature authenticates every field: the owner name is in lower case, and the TTL is at most
// v.TTL and ttl.
//
// RRSIG records that the zone cannot have made are left out; other invalid ones may remain.
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
