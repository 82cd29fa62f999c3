package chain

import (
	"context"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// ValidateResponse sets the security status of an answer, and removes the records that are not verified from a secure
// answer. It waits for the keys of the zones, and queries them if they are not cached.
//
// The error is the cause of ctx, or a local error (see Config.IsLocalError). A bogus answer is not an error: its Status
// is Bogus.
func (c *Validator) ValidateResponse(ctx context.Context, b ValidationBudget, s *Response) error {
	if s.Status == validate.Secure {
		return nil // CheckResponse has verified it
	}
	if !c.ShouldValidate(s.Name, s.Type) || s.Type == dns.TypeRRSIG {
		s.Status = validate.Insecure
		return nil
	}
	zone := s.Zone
	if anchored := c.nearestAnchoredZone(s.zoneLookupName(), zone.Name); anchored != zone.Name && !zone.Stub {
		zone = zone.newChildZone(anchored, true) // an island of security: the keys of the zones above it do not matter
	}
	r, err := c.lookUpKeys(ctx, b, zone)
	if err != nil {
		return err
	}
	for r.status == validate.Secure {
		sets, err := validate.GroupRRsets(s.Answer, s.Authority)
		if err != nil {
			s.setBogus(asReason(err, s.From))
			return nil
		}
		signer, signed := s.findSigner(sets, zone.Name)
		if !signed {
			return c.validateUnsigned(ctx, b, s, zone)
		}
		if signer != zone.Name {
			zone = zone.newChildZone(signer, true)
			if r, err = c.lookUpKeys(ctx, b, zone); err != nil {
				return err
			}
			continue
		}
		return c.verifyResponseOrRenewKeys(ctx, b, s, zone, r, sets)
	}
	switch {
	case r.isNonexistent:
		s.setBogus(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the signer is no zone", Zone: zone.Name, Name: s.Name, Type: s.Type, Server: s.From})
	case r.status == validate.Bogus:
		s.setBogus(r.reason)
		s.Final = !zone.withoutReferral && !r.referralWrong
		if r.referralWrong {
			c.conf.DropReferral(zone) // the wrong referral may have been cached again
		}
	default:
		s.Status, s.Reason = validate.Insecure, r.reason
	}
	return nil
}

// setBogus sets the status to Bogus, with the reason why.
func (r *Response) setBogus(why *validate.Reason) { r.Status, r.Reason = validate.Bogus, why }

// verifyResponseOrRenewKeys verifies the answer s with the keys in r, the cache entry of its zone, and sets its status.
// sets are the RRsets of the answer and authority sections.
//
// If verification fails, the zone may have new keys. It then queries the keys, and verifies the answer again if they
// have changed. The errors are those of lookUpKeys.
func (c *Validator) verifyResponseOrRenewKeys(ctx context.Context, b ValidationBudget, s *Response, zone *Zone, r *keyEntry, sets [][]*validate.RRset) error {
	keys := r.keys
	err := c.verifyAndCacheProofs(s, b.Validation(), sets, keys, time.Now())
	next, failed := c.renewOutdatedKeys(ctx, b, zone, r, err)
	switch {
	case failed != nil:
		return failed
	case next != nil:
		keys = next.keys
		err = c.verifyAndCacheProofs(s, b.Validation(), sets, keys, time.Now())
	}
	if err == nil {
		return nil
	}
	if s.signedByZone || zone.CutsUnknown && s.isNegative() && hasSignedSOA(b.Validation(), sets[1], keys) {
		s.setBogus(asReason(err, s.From))
		return nil
	}
	switch open, failed := c.findHiddenInsecureCut(ctx, b, zone, s.zoneLookupName(), err); {
	case failed != nil:
		return failed
	case open.isProvenInsecure():
		s.Status, s.Reason = validate.Insecure, open.reason
	default:
		s.setBogus(asReason(err, s.From))
	}
	return nil
}

// hasSignedSOA reports whether a negative answer is from the zone of k, and not from a child zone. It is true if the
// SOA RRset of that zone is among sets and has a valid signature.
func hasSignedSOA(w *validate.Validation, sets []*validate.RRset, k *validate.Keys) bool {
	return slices.ContainsFunc(sets, func(set *validate.RRset) bool {
		if set.Type != dns.TypeSOA || dnsname.ToLower(set.Name) != k.Zone() {
			return false
		}
		_, err := w.Verify(set, k, time.Now())
		return err == nil
	})
}

// validateUnsigned sets the status of an answer without signatures. It is insecure if there is an insecure zone between
// zone and the question's name, and otherwise bogus.
//
// It searches for the insecure zone, because the caller may not know it: a server of both the parent and the child zone
// sends no referral.
func (c *Validator) validateUnsigned(ctx context.Context, b ValidationBudget, s *Response, zone *Zone) error {
	r, err := c.findInsecureCut(ctx, b, zone, s.zoneLookupName())
	switch {
	case err != nil:
		return err
	case r == nil:
		s.setBogus(&validate.Reason{EDE: dns.ExtendedErrorCodeRRSIGsMissing, Text: "no signatures", Zone: zone.Name, Name: s.Name, Type: s.Type, Server: s.From})
	case r.status == validate.Insecure:
		s.Status, s.Reason = validate.Insecure, r.reason
	default:
		s.setBogus(r.reason)
	}
	return nil
}

// zoneLookupName returns the name whose zone answers the question. For DS, this is the parent of the question's name,
// because the parent zone has the DS records (RFC 4035 §3.1.4.1). For other types, it is the question's name.
func (r *Response) zoneLookupName() string {
	if r.Type == dns.TypeDS && r.Name != "." {
		return dnsname.Parent(r.Name)
	}
	return r.Name
}

// findSigner returns the zone whose keys must verify the answer: zone, or a zone below it that has signed the answer.
// sets are the RRsets of the answer and authority sections.
//
// It considers the RRsets of the answer section. In a negative answer, it considers the SOA, NSEC and NSEC3 RRsets.
// isSigned is true if at least one of these RRsets has a signature.
func (r *Response) findSigner(sets [][]*validate.RRset, zone string) (signer string, isSigned bool) {
	relevant := sets[0]
	if r.isNegative() {
		relevant = nil
		for _, set := range sets[1] {
			if set.Type == dns.TypeSOA || set.Type == dns.TypeNSEC || set.Type == dns.TypeNSEC3 {
				relevant = append(relevant, set)
			}
		}
	}
	name := r.Name
	if r.Type != dns.TypeDS {
		name = "x." + name // so that the zone itself is above the name
	}
	return deepestSigner(relevant, zone, name), hasSignature(relevant)
}

// isNegative reports whether the answer section is empty, so that the response must prove a denial.
func (r *Response) isNegative() bool { return len(r.Answer) == 0 }

// verifyAndCacheProofs verifies the response s, whose RRsets are sets, with the keys k of the zone (see verifyResponse). If
// the response is secure, it also caches the NSEC, NSEC3 and wildcard records. Answers to other questions can then be
// synthesized from them.
func (c *Validator) verifyAndCacheProofs(s *Response, w *validate.Validation, sets [][]*validate.RRset, k *validate.Keys, now time.Time) error {
	if err := s.verifyResponse(w, sets, k, now); err != nil {
		return err
	}
	if s.Status == validate.Secure && len(s.Authority) > 0 { // otherwise the authority section was not verified
		c.aggressive.VerifyAndAdd(w, k, now, sets...)
	}
	return nil
}

// verifyResponse verifies the answer with the keys k of a zone, within the work limits of w, and sets its status.
// sets are the RRsets of the answer and authority sections.
//
// It reduces Answer and Authority to the verified records (see validate.RRset.AuthenticRecords). If the answer is
// not valid, the error is a *validate.Reason, and no field changes except signedByZone.
func (r *Response) verifyResponse(w *validate.Validation, sets [][]*validate.RRset, k *validate.Keys, now time.Time) error {
	if r.isNegative() {
		return r.verifyDenial(w, sets[1], k, now)
	}
	found := verifiedRecords{keys: k, ttl: uint32(maxCacheTime / time.Second)}
	status := validate.Secure
	alias := slices.ContainsFunc(sets[0], func(set *validate.RRset) bool {
		return set.Type == dns.TypeDNAME && dnsname.ToLower(set.Name) != r.Name
	})
	wild := false
	var made *dns.CNAME
	for _, set := range sets[0] {
		if cname, ok := set.Records[0].(*dns.CNAME); ok && alias && dnsname.ToLower(set.Name) == r.Name {
			made = dns.Copy(cname).(*dns.CNAME) // synthesized from the DNAME record (RFC 6672 §5.3.1)
			continue
		}
		v, err := w.Verify(set, k, now)
		if err != nil {
			return err
		}
		r.signedByZone = true
		if (set.Type == dns.TypeCNAME || set.Type == dns.TypeDNAME) && IsAmbiguous(set.Records) {
			return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a name has several aliases", Zone: k.Zone(), Name: set.Name, Type: set.Type}
		}
		found.addRRset(set, v)
		if v.Encloser >= 0 && set.Type == dns.TypeDNAME { // RFC 4592 §4.4; unbound refuses it as well
			return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a DNAME record was synthesized from a wildcard", Zone: k.Zone(), Name: set.Name, Type: set.Type}
		}
		if v.Encloser >= 0 {
			den, err := w.VerifyNoCloserMatch(dnsname.ToLower(set.Name), v.Encloser, sets[1], k, now)
			if err != nil {
				return correctNSECMissing(err, false)
			}
			wild = true
			found.ttl = min(found.ttl, den.TTL)
			if den.Status == validate.Insecure {
				status = validate.Insecure
			}
		}
	}
	if len(sets[0]) == 0 { // an empty answer without a denial
		r.Status, r.Authority, r.TTL = validate.Insecure, nil, found.ttl
		return nil
	}
	if r.Rcode == dns.RcodeYXDomain {
		status = validate.Insecure
	}
	proof := verifiedRecords{keys: k, ttl: found.ttl}
	if wild {
		proof.addProofs(w, sets[1], now)
		found.ttl = proof.ttl
	}
	r.Status, r.TTL = status, found.ttl
	r.Answer, r.Authority = found.authenticRecords(), proof.authenticRecords()
	if made != nil {
		made.Hdr.Name, made.Hdr.Ttl = r.Name, found.ttl
		r.Answer = append(r.Answer, made)
	}
	return nil
}

// A verifiedRecords collects the verified RRsets of one section. All of them get the same TTL, which is the lowest one.
type verifiedRecords struct {
	keys     *validate.Keys
	sets     []*validate.RRset
	verified []validate.Verification // results of the verification, in the order of sets
	ttl      uint32                  // minimum number of seconds for which the RRsets may be cached (RFC 4035 §5.3.3)
}

// addRRset adds a verified RRset, and lowers the common TTL to that of the RRset. v is the result of its verification.
func (r *verifiedRecords) addRRset(set *validate.RRset, v validate.Verification) {
	r.sets, r.verified = append(r.sets, set), append(r.verified, v)
	r.ttl = min(r.ttl, v.TTL)
}

// authenticRecords returns copies of the records and signatures of all RRsets, with the common TTL (see
// validate.RRset.AuthenticRecords).
func (r *verifiedRecords) authenticRecords() (rrs []dns.RR) {
	for i, set := range r.sets {
		rrs = append(rrs, set.AuthenticRecords(r.keys, r.verified[i], r.ttl)...)
	}
	return rrs
}

// addProofs verifies the NSEC and NSEC3 RRsets among sets, and adds those with valid signatures.
func (r *verifiedRecords) addProofs(w *validate.Validation, sets []*validate.RRset, now time.Time) {
	for _, set := range sets {
		if set.Type != dns.TypeNSEC && set.Type != dns.TypeNSEC3 {
			continue
		}
		if v, err := w.Verify(set, r.keys, now); err == nil {
			r.addRRset(set, v)
		}
	}
}

// verifyDenial verifies a negative answer with the keys k of a zone, and sets its status. sets are the RRsets of the
// authority section.
//
// It also sets Rcode according to the proof, because signatures do not cover the response code. It leaves NOERROR if the
// proof has opt-out, because the name may then be that of an unsigned delegation.
//
// If the proof is not valid, the error is a *validate.Reason.
func (r *Response) verifyDenial(w *validate.Validation, sets []*validate.RRset, k *validate.Keys, now time.Time) error {
	den, err := w.VerifyDenial(r.Name, r.Type, sets, k, now)
	if err != nil {
		return correctNSECMissing(err, !hasDenialRecords(sets))
	}
	if den.Insecure != nil {
		r.Status, r.Reason, r.TTL = validate.Insecure, den.Insecure, den.TTL
		return nil
	}
	if den.Status == validate.Insecure && den.Kind == validate.NoData && r.Rcode == dns.RcodeNameError {
		// With opt-out, NODATA does not prove the NXDOMAIN of the response.
		return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "NXDOMAIN is not proven", Zone: k.Zone(), Name: r.Name, Type: r.Type}
	}
	found := verifiedRecords{keys: k, ttl: den.TTL}
	for _, set := range sets {
		if set.Type != dns.TypeSOA {
			continue
		}
		v, err := w.Verify(set, k, now)
		if err != nil {
			return err
		}
		found.addRRset(set, v)
		if soa, ok := set.Records[0].(*dns.SOA); ok {
			found.ttl = min(found.ttl, soa.Minttl) // RFC 2308 §5
		}
	}
	gone := den.Kind == validate.NameError && (den.Status != validate.Insecure || r.Rcode == dns.RcodeNameError)
	if den.Kind == validate.NoDS && den.OptOut && r.Rcode == dns.RcodeNameError { // the records may also prove NXDOMAIN
		all, err := w.VerifyDenial(r.Name, dns.TypeNone, sets, k, now)
		gone = err == nil && all.Kind == validate.NameError
	}
	r.Rcode = dns.RcodeSuccess
	if gone {
		r.Rcode = dns.RcodeNameError
	}
	found.addProofs(w, sets, now)
	r.Authority = found.authenticRecords()
	r.Status, r.TTL = den.Status, found.ttl
	return nil
}
