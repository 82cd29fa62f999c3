package chain

import (
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// ErrUnsigned is why the next server is asked, although this one may be right.
var ErrUnsigned = errors.New("recursor: no signatures in a signed zone")

// Judge judges a response when it comes, as far as that can be done at once: a referral if cut is not nil, otherwise an answer. An
// error is why the next server is asked: ErrUnsigned, or a *validate.Reason if the server is to blame.
func (c *Chains) Judge(w *validate.Work, s *Said, cut *Zone) error {
	now := time.Now()
	switch {
	case cut != nil && !c.Covers(cut.Name, dns.TypeNS), cut == nil && !c.Covers(s.Name, s.Type), s.Type == dns.TypeRRSIG:
		return nil
	case cut == nil && s.Type == dns.TypeDNSKEY && s.Name == s.Zone.Name:
		return c.passedOver(c.judgeKeys(w, s, now))
	}
	r := c.known(s.Zone, now)
	if r == nil && !c.Promised(s.Zone) || r != nil && r.status != validate.Secure {
		return nil
	}
	if cut != nil {
		return c.passedOver(c.judgeReferral(w, s.Zone, cut, r, now))
	}
	sets, err := validate.Sets(s.Answer, s.Authority)
	if err != nil {
		return c.passedOver(err)
	}
	signer, signed := s.signer(sets, s.Zone.Name)
	switch {
	case !signed && c.opens(s.owner(), s.Zone.Name, now):
		return nil
	case !signed:
		return c.passedOver(ErrUnsigned)
	case r == nil || signer != s.Zone.Name:
		return nil
	}
	return c.passedOver(c.verify(s, w, sets, r.keys, now))
}

// passedOver counts a response that is passed over. One that a limit keeps from being judged is not.
func (c *Chains) passedOver(err error) error {
	if unpaid(err) != nil {
		return nil
	}
	if err != nil {
		c.Counts.PassedOver.Add(1)
	}
	return err
}

// judgeKeys judges the keys of a zone by the DS records that came with the referral, verified or not. If these are forged, nothing is
// left of what the keys verify.
func (c *Chains) judgeKeys(w *validate.Work, s *Said, now time.Time) error {
	var d *validate.DSSet
	if a := c.anchors.of(s.Name); a.zone == s.Name {
		d = a.ds
	} else {
		d = s.Zone.ds()
	}
	if d == nil || d.Unsupported(c.conf.Policy) != nil {
		return nil
	}
	sets, err := validate.Sets(s.Answer)
	if err != nil {
		return err
	}
	set := find(sets[0], s.Name, dns.TypeDNSKEY)
	if set == nil || len(set.Sigs) == 0 {
		return ErrUnsigned
	}
	k, status, err := w.Keys(d, set, now)
	if s.Keys = k; status == validate.Bogus {
		if r := c.fresh(".", now); s.Zone.Name == "." && (r == nil || r.status != validate.Secure) { // otherwise the clock is right, and the server is wrong
			c.root.look(set, d, err, now, c.conf.Policy)
		}
		return err
	}
	return nil
}

// judgeReferral judges what a server says of the keys of a zone below its own. Insecure needs a proof.
func (c *Chains) judgeReferral(w *validate.Work, z, cut *Zone, r *ring, now time.Time) error {
	evidence, err := cut.proof()
	if err != nil {
		return err
	}
	ds, evidence := evidenceOf(evidence, cut.Name)
	if !signed(evidence) {
		if c.opens(dnsname.Parent(cut.Name), z.Name, now) {
			return nil
		}
		return ErrUnsigned
	}
	if r == nil || signerOf(evidence, z.Name, cut.Name) != z.Name {
		return nil
	}
	if ds != nil {
		_, err = w.DS(ds, r.keys, now)
		return err
	}
	den, err := w.Denies(cut.Name, dns.TypeDS, evidence, r.keys, now)
	if err == nil && den.Insecure == nil && den.Kind != validate.NoDS {
		err = &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a delegation is denied", Zone: z.Name, Name: cut.Name, Type: dns.TypeDS}
	}
	if err == nil {
		c.ranges.LearnDenial(w, r.keys, now, evidence)
	}
	return err
}
