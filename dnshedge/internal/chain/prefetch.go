package chain

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// maxPrefetched is how many zones Foresee looks at at once. The others are found one after the other.
const maxPrefetched = 12

// AnchorZone returns the zone of the anchor that is nearest to what a question asks for, for those who do not follow referrals and so
// know of no other zone. Nil: nothing is validated there.
func (c *Validator) AnchorZone(name string, qtype uint16) *Zone {
	if !c.ShouldValidate(name, qtype) {
		return nil
	}
	return &Zone{Name: c.anchors.closestTo((&Response{Name: name, Type: qtype}).authoritativeName()).zone, CutsUnknown: true}
}

// PrefetchChain begins to find out about all keys that it may take to prove an answer, side by side: the names of the zones that there may
// be are known, from the one that Start has returned down to that which the signatures name. Of an answer without
// signatures, it is the names down to its own, one of which must be an insecure cut.
func (c *Validator) PrefetchChain(b WorkBudget, s *Response) {
	sets, err := validate.GroupRRsets(s.Answer, s.Authority)
	if err != nil || s.Type == dns.TypeRRSIG { // of which there is no proof
		return
	}
	now := time.Now()
	signer, signed := s.findSigner(sets, s.Zone.Name)
	if !signed {
		if signer = s.authoritativeName(); c.isBelowInsecureCut(signer, s.Zone.Name, now) {
			return
		}
	}
	c.PrefetchKeys(b, s.Zone)
	cuts := cutCandidates(signer, s.Zone.Name)
	if signed {
		for i := len(cuts) - 1; i >= 0; i-- { // above a zone whose keys are known, nothing is needed
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

// CountZones returns how many zones there are of whose keys something is known.
func (c *Validator) CountZones() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.keyCache)
}
