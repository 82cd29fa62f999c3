package chain

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// Limits of CacheMinimisedDenial.
const (
	maxMinimisedSets  = 6  // RRsets of the response
	maxMinimisedUnits = 20 // units of verification (see validate.Policy.Verifications)
)

// CacheMinimisedDenial caches the proof in a negative answer to a minimised query (RFC 9156), so that later questions
// may need no query. After NXDOMAIN it waits for the keys of the zone, because the proof can save queries for the
// present question, too.
//
// valid is false if a signature is invalid or the response has more than maxMinimisedSets RRsets.
func (c *Validator) CacheMinimisedDenial(ctx context.Context, b ValidationBudget, s *Response) (valid bool) {
	if !s.isNegative() || !c.ShouldValidate(s.Name, s.Type) {
		return true
	}
	sets, err := validate.GroupRRsets(s.Authority)
	if err != nil || len(sets[0]) > maxMinimisedSets {
		return false
	}
	if signer, signed := s.findSigner([][]*validate.RRset{nil, sets[0]}, s.Zone.Name); !signed || signer != s.Zone.Name {
		return true
	}
	r := c.applicableEntry(s.Zone, time.Now())
	if r == nil && s.Rcode == dns.RcodeNameError && c.ExpectsSignatures(s.Zone) {
		r, _ = c.lookUpKeys(ctx, b, s.Zone)
	}
	if r == nil || r.status != validate.Secure {
		return true
	}
	now := time.Now()
	w := b.Validation().NewSpeculativeValidation(maxMinimisedUnits)
	if w == nil {
		return true
	}
	evidence := sets[0][:0:0]
	for _, set := range sets[0] {
		switch set.Type {
		case dns.TypeNSEC, dns.TypeNSEC3:
			if c.aggressive.IsReusable(set) {
				evidence = append(evidence, set)
			}
		case dns.TypeSOA:
			if !c.aggressive.HasSOA(s.Zone.Name, now) {
				evidence = append(evidence, set)
			}
		}
	}
	c.aggressive.VerifyAndAdd(w, r.keys, now, evidence)
	spent, failures, _ := w.SpentWork()
	b.Validation().ChargeSpeculative(spent)
	return failures == 0
}

// Synthesize answers a question without a query, from cached proofs (RFC 8198). It considers the proofs of zone and of
// the zones between zone and name. ok is false if these do not determine the answer.
func (c *Validator) Synthesize(w *validate.Validation, zone, name string, qtype uint16) (answer validate.SynthesizedAnswer, ok bool) {
	if qtype == dns.TypeRRSIG || !c.ShouldValidate(name, qtype) {
		return answer, false
	}
	owner := name
	if qtype == dns.TypeDS && name != "." {
		owner = dnsname.Parent(name)
	}
	from, now := c.anchors.nearestAnchor(owner).zone, time.Now()
	for ; dnsname.IsWithin(owner, zone) && dnsname.IsWithin(owner, from); owner = dnsname.Parent(owner) {
		if c.aggressive.HasZone(owner) {
			if r := c.cachedEntry(owner, now); r == nil || r.status == validate.Secure { // an expired entry was secure when the proof was cached
				if answer, ok = c.aggressive.Synthesize(w, owner, name, qtype, now); ok {
					return answer, true
				}
			}
		}
		if owner == "." {
			break
		}
	}
	return answer, false
}
