package chain

import (
	"context"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const (
	partSets  = 6  // RRsets of the answer to a part of a name that are looked at
	partUnits = 20 // of verification, for them, if the question can spare so many
)

// LearnPart keeps what the answer to a part of a name proves, which nobody validates. It waits for the keys of the zone if the name does not
// exist: then what is below it need not be asked for. It reports whether the signatures were right: wrong ones cost little, once.
func (c *Chains) LearnPart(ctx context.Context, b Bill, s *Said) (right bool) {
	if !s.denies() || !c.Covers(s.Name, s.Type) {
		return true
	}
	sets, err := validate.Sets(s.Authority)
	if err != nil || len(sets[0]) > partSets {
		return false
	}
	if signer, signed := s.signer([][]*validate.RRset{nil, sets[0]}, s.Zone.Name); !signed || signer != s.Zone.Name {
		return true
	}
	r := c.known(s.Zone, time.Now())
	if r == nil && s.Rcode == dns.RcodeNameError && c.Promised(s.Zone) {
		r, _ = c.ring(ctx, b, s.Zone)
	}
	if r == nil || r.status != validate.Secure {
		return true
	}
	now := time.Now()
	w := b.Work().Spare(partUnits)
	if w == nil {
		return true
	}
	evidence := sets[0][:0:0]
	for _, set := range sets[0] {
		switch set.Type {
		case dns.TypeNSEC, dns.TypeNSEC3:
			if c.ranges.Wants(set) {
				evidence = append(evidence, set)
			}
		case dns.TypeSOA:
			if !c.ranges.HasSOA(s.Zone.Name, now) {
				evidence = append(evidence, set)
			}
		}
	}
	c.ranges.Learn(w, r.keys, now, evidence)
	spent, failures, _ := w.Spent()
	b.Work().Charge(spent)
	return failures == 0
}

// Known answers a question from what has been proven of a zone, and of the zones between it and the name, without asking anybody (RFC 8198). It
// reports false if that does not answer it.
func (c *Chains) Known(w *validate.Work, zone, name string, qtype uint16) (known validate.Known, ok bool) {
	if qtype == dns.TypeRRSIG || !c.Covers(name, qtype) {
		return known, false
	}
	owner := name
	if qtype == dns.TypeDS && name != "." {
		owner = dnsname.Parent(name)
	}
	from, now := c.anchors.of(owner).zone, time.Now()
	for ; dnsname.Within(owner, zone) && dnsname.Within(owner, from); owner = dnsname.Parent(owner) {
		if c.ranges.Has(owner) {
			if r := c.fresh(owner, now); r == nil || r.status == validate.Secure { // otherwise it was, when something was proven
				if known, ok = c.ranges.Answer(w, owner, name, qtype, now); ok {
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
