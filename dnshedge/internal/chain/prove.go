package chain

import (
	"context"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// Prove finds out what an answer is worth, and leaves of it what is proven. It waits for keys. The error is that of ctx, or a local
// one.
func (c *Chains) Prove(ctx context.Context, b Bill, s *Said) error {
	if s.Status == validate.Secure {
		return nil // Judge has seen it
	}
	if !c.Covers(s.Name, s.Type) || s.Type == dns.TypeRRSIG {
		s.Status = validate.Insecure
		return nil
	}
	zone := s.Zone
	r, err := c.ring(ctx, b, zone)
	if err != nil {
		return err
	}
	if a := c.anchors.of(s.owner()); r.status != validate.Secure && dnsname.Below(a.zone, zone.Name) && !zone.Stub {
		zone = zone.cut(a.zone, true) // an island
		if r, err = c.ring(ctx, b, zone); err != nil {
			return err
		}
	}
	for r.status == validate.Secure {
		sets, err := validate.Sets(s.Answer, s.Authority)
		if err != nil {
			s.bogus(reasonOf(err, s.From))
			return nil
		}
		signer, signed := s.signer(sets, zone.Name)
		if !signed {
			return c.proveUnsigned(ctx, b, s, zone)
		}
		if signer != zone.Name {
			zone = zone.cut(signer, true)
			if r, err = c.ring(ctx, b, zone); err != nil {
				return err
			}
			continue
		}
		return c.verifyAnew(ctx, b, s, zone, r, sets)
	}
	switch {
	case r.none:
		s.bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the signer is no zone", Zone: zone.Name, Name: s.Name, Type: s.Type, Server: s.From})
	case r.status == validate.Bogus:
		s.bogus(r.why)
		s.Final = !zone.guessed && !r.lost
		if r.lost {
			c.conf.Drop(zone) // whose referral may have been kept since it turned out wrong
		}
	default:
		s.Status, s.Why = validate.Insecure, r.why
	}
	return nil
}

func (s *Said) bogus(why *validate.Reason) { s.Status, s.Why = validate.Bogus, why }

// verifyAnew verifies an answer with the keys of its zone, and with new ones if these do not fit.
func (c *Chains) verifyAnew(ctx context.Context, b Bill, s *Said, zone *Zone, r *ring, sets [][]*validate.RRset) error {
	keys := r.keys
	err := c.verify(s, b.Work(), sets, keys, time.Now())
	next, failed := c.next(ctx, b, zone, r, err)
	switch {
	case failed != nil:
		return failed
	case next != nil:
		keys = next.keys
		err = c.verify(s, b.Work(), sets, keys, time.Now())
	}
	if err == nil {
		return nil
	}
	if s.inZone || zone.Far && s.denies() && hasSignedSOA(b.Work(), sets[1], keys) {
		s.bogus(reasonOf(err, s.From))
		return nil
	}
	switch open, failed := c.between(ctx, b, zone, s.owner(), err); {
	case failed != nil:
		return failed
	case open.open():
		s.Status, s.Why = validate.Insecure, open.why
	default:
		s.bogus(reasonOf(err, s.From))
	}
	return nil
}

// hasSignedSOA reports whether the SOA record of a denial is that of a zone, and a signature of it fits the zone's keys.
func hasSignedSOA(w *validate.Work, sets []*validate.RRset, k *validate.Keys) bool {
	return slices.ContainsFunc(sets, func(set *validate.RRset) bool {
		if set.Type != dns.TypeSOA || dnsname.Lower(set.Name) != k.Zone() {
			return false
		}
		_, err := w.Verify(set, k, time.Now())
		return err == nil
	})
}

// proveUnsigned finds out whether an answer without signatures lies below an insecure cut that no referral told of, as zones
// on the same servers do.
func (c *Chains) proveUnsigned(ctx context.Context, b Bill, s *Said, zone *Zone) error {
	r, err := c.cutAbove(ctx, b, zone, s.owner())
	switch {
	case err != nil:
		return err
	case r == nil:
		s.bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeRRSIGsMissing, Text: "no signatures", Zone: zone.Name, Name: s.Name, Type: s.Type, Server: s.From})
	case r.status == validate.Insecure:
		s.Status, s.Why = validate.Insecure, r.why
	default:
		s.bogus(r.why)
	}
	return nil
}

// owner returns the name whose zone answers: of DS records, the parent's.
func (s *Said) owner() string {
	if s.Type == dns.TypeDS && s.Name != "." {
		return dnsname.Parent(s.Name)
	}
	return s.Name
}

// signer returns which zone's keys are to verify an answer of a server of a zone: that one's, or those of a zone below it; and whether
// there are signatures of what was asked for, or of what denies it.
func (s *Said) signer(sets [][]*validate.RRset, zone string) (signer string, isSigned bool) {
	relevant := sets[0]
	if s.denies() {
		relevant = nil
		for _, set := range sets[1] {
			if set.Type == dns.TypeSOA || set.Type == dns.TypeNSEC || set.Type == dns.TypeNSEC3 {
				relevant = append(relevant, set)
			}
		}
	}
	name := s.Name
	if s.Type != dns.TypeDS {
		name = "x." + name // which is below the zone's own name
	}
	return signerOf(relevant, zone, name), signed(relevant)
}

// denies reports whether the answer is that there is nothing.
func (s *Said) denies() bool { return len(s.Answer) == 0 }

// verify verifies an answer, and keeps what it proves of other questions.
func (c *Chains) verify(s *Said, w *validate.Work, sets [][]*validate.RRset, k *validate.Keys, now time.Time) error {
	if err := s.verify(w, sets, k, now); err != nil {
		return err
	}
	if s.Status == validate.Secure && len(s.Authority) > 0 { // otherwise nothing proves anything, and the authority was not verified
		c.ranges.Learn(w, k, now, sets...)
	}
	return nil
}

// verify verifies an answer with the keys of a zone. Then Answer and Authority are what is secure, as RRset.Authentic has it. It changes nothing but
// inZone if that fails.
func (s *Said) verify(w *validate.Work, sets [][]*validate.RRset, k *validate.Keys, now time.Time) error {
	if s.denies() {
		return s.verifyDenial(w, sets[1], k, now)
	}
	found := authentic{keys: k, ttl: uint32(maxKept / time.Second)}
	status := validate.Secure
	alias := slices.ContainsFunc(sets[0], func(set *validate.RRset) bool { return set.Type == dns.TypeDNAME && dnsname.Lower(set.Name) != s.Name })
	wild := false
	var made *dns.CNAME
	for _, set := range sets[0] {
		if cname, ok := set.Records[0].(*dns.CNAME); ok && alias && dnsname.Lower(set.Name) == s.Name {
			made = dns.Copy(cname).(*dns.CNAME) // here, of the DNAME record (RFC 6672 §5.3.1)
			continue
		}
		v, err := w.Verify(set, k, now)
		if err != nil {
			return err
		}
		s.inZone = true
		found.add(set, v)
		if v.Encloser >= 0 && set.Type == dns.TypeDNAME { // RFC 4592 §4.4; unbound refuses it as well
			return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a DNAME record was made of a wildcard", Zone: k.Zone(), Name: set.Name, Type: set.Type}
		}
		if v.Encloser >= 0 {
			den, err := w.DeniesCloser(dnsname.Lower(set.Name), v.Encloser, sets[1], k, now)
			if err != nil {
				return unproven(err, false)
			}
			wild = true
			found.ttl = min(found.ttl, den.TTL)
			if den.Status == validate.Insecure {
				status = validate.Insecure
			}
		}
	}
	if len(sets[0]) == 0 { // of which no proof is needed
		s.Status, s.Authority, s.TTL = validate.Insecure, nil, found.ttl
		return nil
	}
	if s.Rcode == dns.RcodeYXDomain {
		status = validate.Insecure
	}
	proof := authentic{keys: k, ttl: found.ttl}
	if wild {
		proof.addProof(w, sets[1], now)
		found.ttl = proof.ttl
	}
	s.Status, s.TTL = status, found.ttl
	s.Answer, s.Authority = found.records(), proof.records()
	if made != nil {
		made.Hdr.Name, made.Hdr.Ttl = s.Name, found.ttl
		s.Answer = append(s.Answer, made)
	}
	return nil
}

// verifyDenial verifies that there is nothing. The rcode, which nobody signs, becomes what the proof says.
func (s *Said) verifyDenial(w *validate.Work, sets []*validate.RRset, k *validate.Keys, now time.Time) error {
	den, err := w.Denies(s.Name, s.Type, sets, k, now)
	if err != nil {
		return unproven(err, !proves(sets))
	}
	if den.Insecure != nil {
		s.Status, s.Why, s.TTL = validate.Insecure, den.Insecure, den.TTL
		return nil
	}
	if den.Status == validate.Insecure && den.Kind == validate.NoData && s.Rcode == dns.RcodeNameError {
		// Opt-out lets there be anything but what the response says.
		return &validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "NXDOMAIN is not proven", Zone: k.Zone(), Name: s.Name, Type: s.Type}
	}
	found := authentic{keys: k, ttl: den.TTL}
	for _, set := range sets {
		if set.Type != dns.TypeSOA {
			continue
		}
		v, err := w.Verify(set, k, now)
		if err != nil {
			return err
		}
		found.add(set, v)
		if soa, ok := set.Records[0].(*dns.SOA); ok {
			found.ttl = min(found.ttl, soa.Minttl) // RFC 2308 §5
		}
	}
	gone := den.Kind == validate.NoName
	if den.Kind == validate.NoDS && den.OptOut && s.Rcode == dns.RcodeNameError { // the proof may be one of more than that
		all, err := w.Denies(s.Name, dns.TypeNone, sets, k, now)
		gone = err == nil && all.Kind == validate.NoName
	}
	s.Rcode = dns.RcodeSuccess
	if gone {
		s.Rcode = dns.RcodeNameError
	}
	found.addProof(w, sets, now)
	s.Authority = found.records()
	s.Status, s.TTL = den.Status, found.ttl
	return nil
}
