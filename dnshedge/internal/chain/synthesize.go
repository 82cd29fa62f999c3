package chain

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const (
	maxMinimisedSets  = 6  // RRsets of the answer to a part of a name that are looked at
	maxMinimisedUnits = 20 // of verification, for them, if the question can spare so many
)

// LearnFromMinimised keeps what the answer to a part of a name proves, which nobody validates. It waits for the keys of the zone if the name does not
// exist: then what is below it need not be asked for. It reports whether the signatures were right: wrong ones cost little, once.
func (c *Validator) LearnFromMinimised(ctx context.Context, b WorkBudget, s *Response) (right bool) {
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
	r := c.applicableKeys(s.Zone, time.Now())
	if r == nil && s.Rcode == dns.RcodeNameError && c.ExpectsSignatures(s.Zone) {
		r, _ = c.lookUpKeys(ctx, b, s.Zone)
	}
	if r == nil || r.status != validate.Secure {
		return true
	}
	now := time.Now()
	w := b.Validation().SpareValidation(maxMinimisedUnits)
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
	c.aggressive.AddVerified(w, r.keys, now, evidence)
	spent, failures, _ := w.Spent()
	b.Validation().Charge(spent)
	return failures == 0
}

// SynthesizedAnswer answers a question from what has been proven of a zone, and of the zones between it and the name, without asking anybody (RFC 8198). It
// reports false if that does not answer it.
func (c *Validator) Synthesize(w *validate.Validation, zone, name string, qtype uint16) (known validate.SynthesizedAnswer, ok bool) {
	if qtype == dns.TypeRRSIG || !c.ShouldValidate(name, qtype) {
		return known, false
	}
	owner := name
	if qtype == dns.TypeDS && name != "." {
		owner = dnsname.Parent(name)
	}
	from, now := c.anchors.closestTo(owner).zone, time.Now()
	for ; dnsname.IsWithin(owner, zone) && dnsname.IsWithin(owner, from); owner = dnsname.Parent(owner) {
		if c.aggressive.HasZone(owner) {
			if r := c.cachedKeys(owner, now); r == nil || r.status == validate.Secure { // otherwise it was, when something was proven
				if known, ok = c.aggressive.Synthesize(w, owner, name, qtype, now); ok {
					return known, true
				}
			}
		}
		if owner == "." {
			break
		}
	}
	return known, false
}
