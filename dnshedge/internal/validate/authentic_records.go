package validate

import (
	"slices"

	"github.com/miekg/dns"
)

// AuthenticRecords returns copies of the records of the RRset, followed by copies of its RRSIG records. v must be the
// result of Verify with the keys k.
//
// An attacker cannot have changed any field of the copied records. Their owner name is in lower case, because
// signatures do not protect its case. Their TTL, in seconds, is at most v.TTL and at most ttl.
//
// RRSIG records that cannot be from the zone of k are left out. The remaining RRSIG records may be invalid.
func (s *RRset) AuthenticRecords(k *Keys, v Verification, ttl uint32) []dns.RR {
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
