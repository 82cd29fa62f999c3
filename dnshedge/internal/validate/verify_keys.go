package validate

import (
	"slices"
	"time"

	"github.com/miekg/dns"
)

// VerifyDS verifies the DS RRset s with the keys of the parent zone. The result is the set of keys that may sign the
// child zone's DNSKEY RRset. It is trusted if the keys are trusted. The error is a *Reason.
func (v *Validation) VerifyDS(s *RRset, parent *Keys, now time.Time) (*DSSet, error) {
	verified, err := v.Verify(s, parent, now)
	if err != nil {
		return nil, err
	}
	if s.Type != dns.TypeDS || s.Class != dns.ClassINET || verified.Encloser >= 0 {
		return nil, &Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the records are no DS of a delegation", Zone: parent.Zone(), Name: s.Name, Type: s.Type}
	}
	d := UnverifiedDS(s)
	d.trusted, d.ttl, d.expires = parent.IsTrusted(), verified.TTL, verified.Expires
	if e := parent.Expires(); e.Before(d.expires) {
		d.expires = e
	}
	return d, nil
}

// VerifyDNSKEY verifies dnskeys, the DNSKEY RRset of a zone (RFC 4035 §5.2). At least one key must match a record of d,
// and must have made a signature of the RRset that is valid at the time now.
//
// The status is that of data signed by the keys:
//
//	Secure     d is trusted
//	Unchecked  d is not trusted; call Keys.WithTrustedDS later
//	Insecure   no record of d, or no key that matches one, has a supported algorithm or digest
//	Bogus      no valid signature
//
// The keys are returned for Secure and Unchecked. Otherwise the keys are nil, and the error is a *Reason. If the status
// is Insecure, its EDE is 1 or 2. The zone is really insecure only if d is trusted.
func (v *Validation) VerifyDNSKEY(d *DSSet, dnskeys *RRset, now time.Time) (*Keys, Status, error) {
	c := dnskeys.canonicalForm()
	r := &Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the records are no keys of the zone", Zone: d.Zone(), Name: dnskeys.Name, Type: dns.TypeDNSKEY}
	if !c.ok || dnskeys.Type != dns.TypeDNSKEY || dnskeys.Class != dns.ClassINET || c.owner != d.zone {
		return nil, Bogus, r
	}
	if r := d.UnsupportedReason(v.Policy); r != nil {
		return nil, Insecure, r
	}
	keys := make([]dnskey, 0, len(c.rdata))
	for _, data := range c.rdata[:min(len(c.rdata), maxKeys)] {
		keys = append(keys, v.Policy.parseDNSKEY(data))
	}
	entries, anchors, refused := v.findSecureEntryPoints(d, keys, r)
	if len(entries) == 0 {
		if refused && r.Limit == "" {
			r.EDE, r.Text = dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, "the keys that the DS records fit are not supported"
			return nil, Insecure, r
		}
		return nil, Bogus, r
	}
	g, signer, r := v.findRequiredSignatures(dnskeys, d, entries, now, false)
	if r != nil {
		return nil, Bogus, r
	}
	i := slices.IndexFunc(entries, signer.isSameRecord)
	verified := g.newVerification(dnskeys, now)
	k := &Keys{zone: d.zone, keys: keys, policy: v.Policy, ds: d, entryPoint: anchors[i], signatureExpires: verified.Expires, ttl: verified.TTL}
	if d.trusted {
		return k, Secure, nil
	}
	return k, Unchecked, nil
}

// SigningKeyTags returns the key tags of the keys with which the zone validly signs its keys at the time now: they
// match a record of d and have signed the DNSKEY RRset dnskeys.
//
// If there are none, off is the distance of now from the nearest validity period of a signature by a key that
// matches. It is positive if now is after the period, negative if now is before it, and 0 if there is no such
// signature.
//
// SigningKeyTags is for warnings about trust anchors and the local clock. It accepts the algorithms that p accepts,
// and examines at most 8 signatures, which do not count towards the limits of a question.
func (d *DSSet) SigningKeyTags(p Policy, dnskeys *RRset, now time.Time) (tags []uint16, off time.Duration) {
	const most = 8 // signatures
	w := &Validation{Policy: p}
	c := dnskeys.canonicalForm()
	keys := make([]dnskey, 0, len(c.rdata))
	for _, data := range c.rdata[:min(len(c.rdata), maxKeys)] {
		keys = append(keys, p.parseDNSKEY(data))
	}
	entries, _, _ := w.findSecureEntryPoints(d, keys, new(Reason))
	for _, sig := range dnskeys.Sigs[:min(len(dnskeys.Sigs), most)] {
		one := NewRRset(dnskeys.Records, sig)
		at := now
		if len(one.canonicalForm().sigs) == 1 {
			g := &one.canonicalForm().sigs[0]
			switch early, late := g.checkValidityPeriod(now); {
			case early && late:
			case early:
				at = g.toTime(g.inception, now)
			case late:
				at = g.toTime(g.expiration, now)
			}
		}
		_, signer, wrong := w.findValidSignature(one, d.zone, entries, at, false)
		switch away := now.Sub(at); {
		case wrong != nil:
		case at.Equal(now):
			tags = append(tags, signer.tag)
		case off == 0 || away.Abs() < off.Abs():
			off = away
		}
	}
	if len(tags) > 0 {
		off = 0
	}
	return tags, off
}

// findSecureEntryPoints returns the keys that the DS records in d confirm and that can verify signatures. Such a key is
// a secure entry point of the zone. matched holds the DS record of each key, in the same order. If there are none, it
// sets r to the reason.
//
// unsupported is true if every DS record matches a key, and at least one of these keys has an unsupported algorithm. If
// there are no usable keys either, the zone is insecure and not bogus.
func (v *Validation) findSecureEntryPoints(d *DSSet, keys []dnskey, r *Reason) (entries []dnskey, matched []keyDigest, unsupported bool) {
	r.EDE, r.Text = dns.ExtendedErrorCodeDNSKEYMissing, "no key fits a DS record"
	mismatches, strays := 0, false
	for _, a := range d.supportedRecords(v.Policy) {
		fit := false
		for i := range keys {
			k := &keys[i]
			if k.data == nil || k.tag != a.tag || k.algorithm != a.algorithm {
				continue
			}
			if mismatches == maxMismatches {
				r.Text = "too many keys do not fit the DS records with their tag"
				return entries, matched, false
			}
			if !a.matchesKey(d.zone, k, v.Policy) {
				if a.digestType != 0 {
					mismatches++
				}
				continue
			}
			switch {
			case k.verifier != nil:
				fit = true
				if !slices.ContainsFunc(entries, k.isSameRecord) { // one key, two digests
					entries, matched = append(entries, *k), append(matched, a)
				}
			case k.unsupported:
				unsupported, fit = true, true
			default:
				r.EDE, r.Text = k.unusableEDE, "the key that a DS record fits cannot be used"
			}
		}
		strays = strays || !fit
	}
	return entries, matched, unsupported && !strays
}
