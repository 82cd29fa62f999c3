package validate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A Verification describes an RRset whose signature is valid: whether the signing keys are trusted, how long the RRset may be
// cached, and whether it was expanded from a wildcard. An RRset without a valid signature has none.
type Verification struct {
	// Status is Secure if the keys are trusted, and Unchecked if they are not trusted yet.
	Status Status
	// TTL is the number of seconds for which the RRset may be cached, at least 1 (RFC 4035 §5.3.3). It is the minimum of
	// the RRset's TTL, the TTL and the original TTL of the RRSIG, and the time until the signature expires.
	TTL uint32
	// Expires is the expiration time of the signature, but at least a second from now. A signature that expired within the
	// tolerated clock skew is accepted, and the RRset must not expire before it is used.
	Expires time.Time
	// Encloser is the number of labels of the closest encloser if the RRset was expanded from a wildcard. The caller
	// must then confirm the expansion with VerifyNoCloserMatch (RFC 4035 §5.3.4).
	//
	// It is -1 if the RRset was not expanded from a wildcard.
	Encloser int
}

// Verify verifies the signatures of an RRset with the keys of a zone, until it finds a valid signature (RFC 4035 §5.3).
//
// The error is a *Reason that describes the signature that passed the most checks. Its EDE is 10 without signatures, 9
// without a key, 7 or 8 outside of the validity period, and usually 6 otherwise.
//
// The result is cached by the addresses of s and k, so that a repeated call costs nothing.
func (v *Validation) Verify(s *RRset, k *Keys, now time.Time) (Verification, error) {
	return v.verifyRRset(s, k, now, false)
}

// verifyRRset does the work of Verify: it verifies the signatures of the RRset s with the keys k. superfluous must be
// true if the response does not need the RRset. The cost then counts towards the lower limit for useless work (see
// uselessWorkLimit).
func (v *Validation) verifyRRset(s *RRset, k *Keys, now time.Time, superfluous bool) (Verification, error) {
	if len(s.Sigs) == 0 { // unsigned data needs no canonical form
		return Verification{}, &Reason{EDE: dns.ExtendedErrorCodeRRSIGsMissing, Text: textUnsigned, Zone: k.Zone(), Name: s.Name, Type: s.Type}
	}
	p := rrsetAndKeys{s, k}
	if o, ok := lookUpResult(v, &v.verified, p); ok {
		return o.verified, o.err
	}
	var o cachedVerification
	if g, _, r := v.findRequiredSignatures(s, k.ds, k.keys, now, superfluous); r != nil {
		o.err = r
	} else {
		o.verified = g.newVerification(s, now)
		if k.IsTrusted() {
			o.verified.Status = Secure
		}
	}
	storeResult(v, &v.verified, p, o)
	return o.verified, o.err
}

// newVerification returns the Verification of the RRset set, whose valid signature is s: its lifetime and whether it was
// expanded from a wildcard. The caller sets Status, according to the trust in the key.
func (s *signature) newVerification(set *RRset, now time.Time) Verification {
	left := max(1, -s.secondsSince(s.expiration, now))
	received := ValidTTL(s.recordTTL)
	for i := range set.canonicalForm().sigs {
		if same := &set.canonicalForm().sigs[i]; bytes.Equal(same.value, s.value) && bytes.Equal(same.signedFields, s.signedFields) {
			received = min(received, ValidTTL(same.recordTTL)) // a duplicate record (RFC 2181 §5.2)
		}
	}
	v := Verification{TTL: min(set.TTL, received, ValidTTL(s.originalTTL), uint32(left)), Expires: time.Unix(now.Unix()+left, 0).UTC(), Encloser: -1}
	if s.labels < countRRSIGLabels(set.canonicalForm().owner) {
		v.Encloser = s.labels
	}
	return v
}

// text of the Reason for an RRset without signatures
const textUnsigned = "there are no signatures"

// countRRSIGLabels returns the number of labels of an owner name as the Labels field of a signature counts them:
// without the root label and without a leftmost asterisk (RFC 4034 §3.1.3).
//
// If the field of a signature is lower, the records were expanded from a wildcard.
func countRRSIGLabels(owner name) int {
	n := owner.countLabels()
	if owner.isWildcard() {
		n--
	}
	return n
}

// The stages of checking a signature, in the order of the checks. If no signature is valid, the error describes the
// signature that has reached the highest stage.
const (
	stageUnsigned        = iota // there is no signature
	stageMismatched             // the zone cannot have made the signature, or the algorithm is unsupported
	stageOutsideValidity        // the signature is expired or not yet valid
	stageNoKey                  // the zone has no usable key for the signature
	stageInvalid                // the signature is cryptographically invalid, or a limit was reached
)

// A signatureSearch is the state of a search for a valid signature of one RRset. For the error, it stores the fault of
// the signature that has passed the most checks.
type signatureSearch struct {
	work         *Validation
	rrset        *RRset
	canonical    *canonicalRRset
	highestStage int  // highest stage that a signature has reached so far
	failures     int  // invalid signatures so far
	stopped      bool // a limit was reached, so that no further signature must be verified

	superfluous bool   // the response does not need the RRset, so that the cost counts as useless work
	reason      Reason // fault of the signature that has reached highestStage
}

// findRequiredSignatures searches for a valid signature of the RRset s by one of the keys of a zone. With
// Policy.RequireAllAlgorithms, there must be one for each supported algorithm in d, the DS records of the zone. It
// returns the signature that expires first, and its key, or the reason why a signature is missing.
//
// superfluous must be true if the response does not need the RRset. The cost then counts towards the lower limit for
// useless work.
func (v *Validation) findRequiredSignatures(s *RRset, d *DSSet, keys []dnskey, now time.Time, superfluous bool) (*signature, *dnskey, *Reason) {
	if !v.Policy.RequireAllAlgorithms {
		return v.findValidSignature(s, d.zone, keys, now, superfluous)
	}
	var first *signature
	var signer *dnskey
	for _, algorithm := range d.supportedAlgorithms(v.Policy) {
		same := slices.DeleteFunc(slices.Clone(keys), func(k dnskey) bool { return k.algorithm != algorithm })
		g, k, r := v.findValidSignature(s, d.zone, same, now, superfluous)
		if r != nil {
			return nil, nil, r
		}
		if first == nil || g.secondsSince(g.expiration, now) > first.secondsSince(first.expiration, now) {
			first, signer = g, k
		}
	}
	return first, signer, nil
}

// findValidSignature searches for a valid signature of the RRset s by one of the keys of a zone. It returns the first
// valid signature and its key. If there is none, it returns the reason.
//
// superfluous must be true if the response does not need the RRset. The cost then counts towards the lower limit for
// useless work.
func (v *Validation) findValidSignature(s *RRset, zone name, keys []dnskey, now time.Time, superfluous bool) (*signature, *dnskey, *Reason) {
	search := &signatureSearch{work: v, rrset: s, canonical: s.canonicalForm(), superfluous: superfluous}
	search.recordCheckFailure(stageUnsigned, dns.ExtendedErrorCodeRRSIGsMissing, textUnsigned)
	if !search.canonical.ok || s.Class != dns.ClassINET || s.Type == dns.TypeRRSIG {
		search.recordCheckFailure(stageUnsigned, dns.ExtendedErrorCodeDNSBogus, "the records have no form that could be signed")
		return nil, nil, search.failureReason(zone)
	}
	for i := range search.canonical.sigs {
		g := &search.canonical.sigs[i]
		if !search.checkSignature(g, zone, now) {
			continue
		}
		if k := search.findSigningKey(g, keys); k != nil {
			return g, k, nil
		}
		if search.stopped {
			break
		}
	}
	return nil, nil, search.failureReason(zone)
}

// failureReason returns the error of a search without success: why none of the signatures is valid.
func (s *signatureSearch) failureReason(zone name) *Reason {
	s.reason.Zone, s.reason.Name, s.reason.Type = zone.String(), s.rrset.Name, s.rrset.Type
	return &s.reason
}

// recordCheckFailure records why a signature is not valid: the stage of the checks at which it has failed, an extended
// error code, and a text. Only the signature that has reached the highest stage is reported.
func (s *signatureSearch) recordCheckFailure(stage int, ede uint16, text string) {
	if stage >= s.highestStage {
		s.highestStage = stage
		s.reason.EDE, s.reason.Text, s.reason.From, s.reason.Until = ede, text, time.Time{}, time.Time{}
	}
}

// checkSignature returns true if the signature g should be verified: the zone can have made it, its algorithm is
// supported, and now is within its validity period. Otherwise it records the fault and returns false.
func (s *signatureSearch) checkSignature(g *signature, zone name, now time.Time) bool {
	if !g.isAllowedFor(s.canonical.owner, s.rrset.Type, zone) || !s.work.Policy.supportsAlgorithm(g.algorithm) {
		s.recordCheckFailure(stageMismatched, dns.ExtendedErrorCodeDNSBogus, "no signature is one that the zone could have made")
		return false
	}
	early, late := g.checkValidityPeriod(now)
	if !early && !late {
		return true
	}
	from, until := g.toTime(g.inception, now), g.toTime(g.expiration, now)
	s.recordCheckFailure(stageOutsideValidity, validityEDE(early, late), fmt.Sprintf("the signature is valid from %s until %s, and the clock says %s",
		from.Format(time.RFC3339), until.Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	if s.highestStage == stageOutsideValidity {
		s.reason.From, s.reason.Until = from, until
	}
	return false
}

// findSigningKey returns the key that has made the signature g, after it has verified g with the keys that have g's key
// tag and algorithm. It returns nil if none of them has made it, or if a limit has stopped the search.
func (s *signatureSearch) findSigningKey(g *signature, keys []dnskey) *dnskey {
	s.recordCheckFailure(stageNoKey, dns.ExtendedErrorCodeDNSKEYMissing, "there is no key for the signature")
	var sum []byte
	first := s.work.firstKeyToTry(keys, g)
	for i := range keys {
		k := &keys[(first+i)%len(keys)]
		if k.tag != g.keyTag || k.algorithm != g.algorithm {
			continue
		}
		if k.verifier == nil {
			s.recordCheckFailure(stageNoKey, k.unusableEDE, "the key of the signature cannot be used")
			continue
		}
		if s.failures == maxSetFailures {
			s.stopped, s.reason.Text = true, "too many signatures are wrong"
			return nil
		}
		units := 1 + s.canonical.maxSignedSize(g)/sizePerUnit
		if !s.spendUnits(units) {
			return nil
		}
		if sum == nil {
			sum = hashSignedData(g.algorithm, s.canonical.signedData(g, s.rrset))
		}
		as := newSignatureCacheKey(k, sum, g.value)
		right, known := lookUpResult(s.work, &s.work.results, as)
		if !known {
			if !s.spendUnits(k.verifier.cost() - 1) {
				return nil
			}
			units += k.verifier.cost() - 1
			right = k.verifier.verify(sum, g.value)
			storeResult(s.work, &s.work.results, as, right)
		}
		if right {
			if known || s.superfluous {
				s.work.recordUselessWork(units)
			}
			s.work.storeSigningKey(keys, g, (first+i)%len(keys), first)
			return k
		}
		s.failures++
		if known { // a repeated response
			s.work.recordUselessWork(units)
		} else {
			s.work.recordInvalidSignature(units)
		}
		s.recordCheckFailure(stageInvalid, dns.ExtendedErrorCodeDNSBogus, "the signature is wrong")
	}
	return nil
}

// spendUnits counts units of verification before they are spent. It returns false if a limit is reached, and stops the
// search.
func (s *signatureSearch) spendUnits(units int) bool {
	limit := s.work.spendVerification(units)
	if limit != "" {
		s.recordCheckFailure(stageInvalid, dns.ExtendedErrorCodeDNSBogus, "the limit of "+limit+" was reached")
		s.stopped, s.reason.Limit = true, limit
	}
	return limit == ""
}

// validityEDE returns the extended error code of a signature outside of its validity period. early and late are the
// results of checkValidityPeriod.
func validityEDE(early, late bool) uint16 {
	switch {
	case early && late:
		return dns.ExtendedErrorCodeSignatureExpiredBeforeValid
	case early:
		return dns.ExtendedErrorCodeSignatureNotYetValid
	}
	return dns.ExtendedErrorCodeSignatureExpired
}

// isAllowedFor reports whether a zone can have made the signature for records with this owner and type (RFC 4035
// §5.3.1). The zone must be the signer and must contain the owner. DS records at its apex are not its own, but those of
// the parent zone.
//
// The Labels field must not be lower than the zone's number of labels. It is the number of labels of the name before
// the expansion of a wildcard. If it were lower, the wildcard would be outside of the zone.
func (s *signature) isAllowedFor(owner name, typ uint16, zone name) bool {
	if s.signer != zone || s.typeCovered != typ || !owner.isWithin(zone) || typ == dns.TypeDS && owner == zone {
		return false
	}
	lowest := zone.countLabels()
	if owner == zone {
		lowest = countRRSIGLabels(zone) // a zone's own name may begin with an asterisk, which does not count (RFC 4592 §4.2)
	}
	return lowest <= s.labels && s.labels <= countRRSIGLabels(owner)
}

// sizePerUnit is the number of hashed bytes that cost one unit of verification. The limit is needed because a message
// with compressed names can expand to thirty times its length for each signature.
const sizePerUnit = 32 << 10

// maxSignedSize returns an upper bound, in bytes, for the length of the data that the signature g covers.
func (c *canonicalRRset) maxSignedSize(g *signature) int {
	n := len(g.signedFields)
	for _, data := range c.rdata {
		n += len(c.owner) + 10 + len(data)
	}
	return n
}

// signedData returns the data that the signature g covers: fields of the signature, and the records of s in canonical
// form (RFC 4034 §3.1.8.1).
func (c *canonicalRRset) signedData(g *signature, s *RRset) []byte {
	owner := c.owner
	if g.labels < countRRSIGLabels(owner) {
		owner, _ = owner.trimToLabels(g.labels).wildcardName() // it always fits, because it has fewer labels than the name
	}
	b := append(make([]byte, 0, c.maxSignedSize(g)), g.signedFields...)
	for _, data := range c.rdata {
		b = append(b, owner...)
		b = binary.BigEndian.AppendUint16(b, s.Type)
		b = binary.BigEndian.AppendUint16(b, s.Class)
		b = binary.BigEndian.AppendUint32(b, g.originalTTL)
		b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
		b = append(b, data...)
	}
	return b
}
