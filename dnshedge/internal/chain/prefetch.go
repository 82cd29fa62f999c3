package chain

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// maxPrefetched is the maximum number of key lookups that PrefetchChain starts in parallel. Further lookups follow one
// after the other.
const maxPrefetched = 12

// AnchorZone returns the zone of the nearest trust anchor for a question. It is for a caller that follows no referrals
// and thus knows no other zone. It returns nil if the answer needs no validation.
func (c *Validator) AnchorZone(name string, qtype uint16) *Zone {
	if !c.ShouldValidate(name, qtype) {
		return nil
	}
	return &Zone{Name: c.anchors.nearestAnchor((&Response{Name: name, Type: qtype}).zoneLookupName()).zone, CutsUnknown: true}
}

// PrefetchChain starts in parallel the key lookups that the validation of an answer may need. These are the zones from
// s.Zone, the result of AnchorZone, to the signer. Without signatures they are all names down to the question's,
// because one of them must be an insecure delegation.
func (c *Validator) PrefetchChain(b WorkBudget, s *Response) {
	sets, err := validate.GroupRRsets(s.Answer, s.Authority)
	if err != nil || s.Type == dns.TypeRRSIG { // which is never signed
		return
	}
	now := time.Now()
	signer, signed := s.findSigner(sets, s.Zone.Name)
	if !signed {
		if signer = s.zoneLookupName(); c.isBelowInsecureCut(signer, s.Zone.Name, now) {
			return
		}
	}
	c.PrefetchKeys(b, s.Zone)
	cuts := cutCandidates(signer, s.Zone.Name)
	if signed {
		for i := len(cuts) - 1; i >= 0; i-- { // zones above cached secure keys need no lookup
			if r := c.cachedKeys(cuts[i], now); r != nil && r.status == validate.Secure {
				cuts = cuts[i+1:]
				break
			}
		}
		cuts = cuts[max(0, len(cuts)-maxPrefetched):]
	}
	for i, cut := range cuts[:min(len(cuts), maxPrefetched)] {
		c.PrefetchKeys(b, s.Zone.childZone(cut, signed || i < len(cuts)-1))
	}
}

// CountZones returns the number of zones in the key cache.
func (c *Validator) CountZones() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.keyCache)
}
