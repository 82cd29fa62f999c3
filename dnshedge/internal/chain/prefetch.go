package chain

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// maxPrefetched is the maximum number of key lookups that PrefetchChain starts. Validation itself starts further
// lookups, one after the other.
const maxPrefetched = 12

// AnchorZone returns a Zone for the nearest trust anchor at or above the name of a question. Callers that follow no
// referrals, such as forwarders, use it as Response.Zone: validation then finds the zones between it and the name. It
// returns nil if the answer must not be validated.
func (c *Validator) AnchorZone(name string, qtype uint16) *Zone {
	if !c.ShouldValidate(name, qtype) {
		return nil
	}
	return &Zone{Name: c.anchors.nearestAnchor((&Response{Name: name, Type: qtype}).zoneLookupName()).zone, CutsUnknown: true}
}

// PrefetchChain starts, in parallel, the key lookups that ValidateResponse will need for the answer s. It does not
// wait. s.Zone must be a result of AnchorZone.
//
// It looks up the zones between s.Zone and the signer of the answer. Without signatures, it looks up all names between
// s.Zone and the question's name, because one of them must be an insecure zone.
func (c *Validator) PrefetchChain(b ValidationBudget, s *Response) {
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
	cuts := listPossibleZoneCuts(signer, s.Zone.Name)
	if signed {
		for i := len(cuts) - 1; i >= 0; i-- { // zones above cached secure keys need no lookup
			if r := c.cachedEntry(cuts[i], now); r != nil && r.status == validate.Secure {
				cuts = cuts[i+1:]
				break
			}
		}
		cuts = cuts[max(0, len(cuts)-maxPrefetched):]
	}
	for i, cut := range cuts[:min(len(cuts), maxPrefetched)] {
		c.PrefetchKeys(b, s.Zone.newChildZone(cut, signed || i < len(cuts)-1))
	}
}
