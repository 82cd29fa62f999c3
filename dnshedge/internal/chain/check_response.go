package chain

import (
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// ErrUnsigned is the error of a response without signatures from a zone that should be signed. The response can be
// correct if its records belong to an insecure zone below that zone.
var ErrUnsigned = errors.New("recursor: no signatures in a signed zone")

// CheckResponse checks a response on arrival, so that the caller can query the next server at once if the response is
// bogus. It sends no query, does not wait, and verifies only as far as the cached keys and DS records allow.
//
// If cut is not nil, the response is a referral to this zone. Otherwise it is an answer. The error is ErrUnsigned, or a
// *validate.Reason if the response is bogus.
func (c *Validator) CheckResponse(w *validate.Validation, s *Response, cut *Zone) error {
	now := time.Now()
	switch {
	case cut != nil && !c.ShouldValidate(cut.Name, dns.TypeNS), cut == nil && !c.ShouldValidate(s.Name, s.Type), s.Type == dns.TypeRRSIG:
		return nil
	case cut == nil && s.Type == dns.TypeDNSKEY && s.Name == s.Zone.Name:
		return c.countRejection(c.checkKeys(w, s, now))
	}
	r := c.applicableEntry(s.Zone, now)
	if r == nil && !c.ExpectsSignatures(s.Zone) || r != nil && r.status != validate.Secure {
		return nil
	}
	if cut != nil {
		return c.countRejection(c.checkReferral(w, s.Zone, cut, r, now))
	}
	sets, err := validate.GroupRRsets(s.Answer, s.Authority)
	if err != nil {
		return c.countRejection(err)
	}
	signer, signed := s.findSigner(sets, s.Zone.Name)
	switch {
	case !signed && c.isBelowInsecureCut(s.zoneLookupName(), s.Zone.Name, now):
		return nil
	case !signed:
		return c.countRejection(ErrUnsigned)
	case r == nil || signer != s.Zone.Name:
		return nil
	}
	return c.countRejection(c.verifyAndCacheProofs(s, w, sets, r.keys, now))
}

// countRejection counts a response that must be rejected because of err, the error of its check, and returns err. It
// returns nil if a limit prevented the check: the response may be correct and is used. It also returns nil if err is
// nil.
func (c *Validator) countRejection(err error) error {
	if findLimitReason(err) != nil {
		return nil
	}
	if err != nil {
		c.Counts.Rejected.Add(1)
	}
	return err
}

// checkKeys verifies the DNSKEY RRset in the response s, on arrival, with the trust anchor or with the DS records of
// the referral. If the RRset is valid, it sets s.Keys.
//
// At that time, the signatures of the DS records may not be verified yet. If these turn out to be forged,
// verifyKeyResponse discards s.Keys.
func (c *Validator) checkKeys(w *validate.Validation, s *Response, now time.Time) error {
	var d *validate.DSSet
	if a := c.anchors.nearestAnchor(s.Name); a.zone == s.Name {
		d = a.ds
	} else {
		d = s.Zone.unverifiedDSSet()
	}
	if d == nil || d.UnsupportedReason(c.conf.Policy) != nil {
		return nil
	}
	sets, err := validate.GroupRRsets(s.Answer)
	if err != nil {
		return err
	}
	set := findRRset(sets[0], s.Name, dns.TypeDNSKEY)
	if set == nil || len(set.Sigs) == 0 {
		return ErrUnsigned
	}
	k, status, err := w.VerifyDNSKEY(d, set, now)
	if s.Keys = k; status == validate.Bogus {
		if r := c.cachedEntry(".", now); s.Zone.Name == "." && (r == nil || r.status != validate.Secure) { // otherwise the clock is right
			c.rootStatus.observeKeys(set, d, err, now, c.conf.Policy)
		}
		return err
	}
	return nil
}

// checkReferral verifies, on arrival, the DS records of a referral from z to the zone cut, or the proof that cut has no
// DS records. r is the cache entry of z. If it is nil, the keys of z are not known yet, and checkReferral only checks
// that there are signatures.
func (c *Validator) checkReferral(w *validate.Validation, z, cut *Zone, r *keyEntry, now time.Time) error {
	evidence, err := cut.parseDSEvidence()
	if err != nil {
		return err
	}
	ds, evidence := selectDSEvidence(evidence, cut.Name)
	if !hasSignature(evidence) {
		if c.isBelowInsecureCut(dnsname.Parent(cut.Name), z.Name, now) {
			return nil
		}
		return ErrUnsigned
	}
	if r == nil || deepestSigner(evidence, z.Name, cut.Name) != z.Name {
		return nil
	}
	if ds != nil {
		_, err = w.VerifyDS(ds, r.keys, now)
		return err
	}
	den, err := w.VerifyDenial(cut.Name, dns.TypeDS, evidence, r.keys, now)
	if err == nil && den.Insecure == nil && den.Kind != validate.NoDS {
		err = &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a delegation is denied", Zone: z.Name, Name: cut.Name, Type: dns.TypeDS}
	}
	if err == nil {
		c.aggressive.VerifyAndAddDenial(w, r.keys, now, evidence)
	}
	return err
}
