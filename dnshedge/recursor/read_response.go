package recursor

import (
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// readResponse classifies the response m from a server of the zone z, and extracts the records that answer q. It
// ignores all other records (scrubbing).
//
// full is false if q is minimised. An error RCODE then results in kindMinimisedRefused, because the server may refuse
// only minimised questions.
func readResponse(m *dns.Msg, z *delegation, q question, full bool, now time.Time) *parsedResponse {
	switch m.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
	default:
		if !full && (m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
			return &parsedResponse{kind: kindMinimisedRefused}
		}
		if m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeNotAuth {
			return &parsedResponse{kind: kindLame}
		}
		return &parsedResponse{kind: kindFailed}
	}
	if ns, inAnswer := findReferralSection(m, q); ns != nil {
		if cut, mixed := readReferral(m, ns, z, q, now); cut != nil {
			return &parsedResponse{kind: kindReferral, isFallback: m.Authoritative || mixed || inAnswer, referral: cut}
		}
	}
	r := &parsedResponse{kind: kindAnswer, isFallback: full && !m.Authoritative && !z.isStub}
	if r.nonAuthoritative = !m.Authoritative && m.RecursionAvailable && !z.isStub; r.nonAuthoritative && !full {
		return &parsedResponse{kind: kindLame}
	}
	switch {
	case r.addAlias(m, z, q):
	case m.Rcode != dns.RcodeYXDomain && r.addAnswerRecords(m, q): // with YXDOMAIN, records cannot be an answer
	case m.Rcode == dns.RcodeYXDomain:
		return &parsedResponse{kind: kindFailed}
	case r.addReferralDS(m, z, q):
	default:
		soa := findSOA(m.Ns, z.zone, q.name)
		switch {
		case soa != nil:
			r.rcode = m.Rcode
			r.authority = append(r.authority, soa)
		case !m.Authoritative && !z.isStub:
			if !full || !mayBeNoData(m, z.zone) {
				return &parsedResponse{kind: kindLame}
			}
			r.rcode, r.nonAuthoritative = m.Rcode, true
		case m.Rcode == dns.RcodeNameError:
			r.rcode = m.Rcode
			r.isFallback = r.isFallback || full && !z.isStub && hasSOA(m.Ns) // the SOA record is of another zone
		default:
			if hasNSOfOtherZone(m.Ns, z.zone) {
				return &parsedResponse{kind: kindLame}
			}
			r.isFallback = full && !z.isStub
		}
	}
	if q.do {
		r.addDenialRecords(m, z.zone)
	}
	r.finishParsing()
	r.scrubbed = max(0, len(m.Answer)+len(m.Ns)-len(r.answer)-len(r.authority))
	return r
}

// addAnswerRecords adds the records in m that answer q, with their signatures. It returns false if there are none.
//
// For ANY, it adds at most as many types as the validator accepts. A response to ANY may be partial (RFC 8482 §4.1).
func (r *parsedResponse) addAnswerRecords(m *dns.Msg, q question) bool {
	var types []uint16
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || h.Rrtype != q.qtype && q.qtype != dns.TypeANY || !strings.EqualFold(h.Name, q.name) {
			continue
		}
		if t := coveredType(rr); q.qtype == dns.TypeANY && !slices.Contains(types, t) {
			if len(types) == validate.MaxSignedRRsets {
				continue
			}
			types = append(types, t)
		}
		r.answer = append(r.answer, rr)
	}
	if len(r.answer) == 0 {
		return false
	}
	equalizeTTLs(r.answer)
	r.addSignatures(m, q, q.name, q.qtype)
	return true
}

// addReferralDS reads the answer to a DS question from a referral, which some servers send instead of the answer. It
// returns true if the referral m has DS records, or records that deny them.
//
// It adds the DS records to the answer. z is the zone whose server has sent m.
func (r *parsedResponse) addReferralDS(m *dns.Msg, z *delegation, q question) bool {
	if q.qtype != dns.TypeDS || !q.do || m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 || hasSOA(m.Ns) || parseDelegation(q.name, z.zone, m.Ns, nil, time.Now()) == nil {
		return false
	}
	proof := readDSEvidence(m.Ns, q.name, z.zone)
	if len(proof) == 0 {
		return false
	}
	if r.isFallback = false; slices.ContainsFunc(proof, isDS) {
		r.answer = proof
		equalizeTTLs(r.answer)
	}
	return true
}

// addAlias adds the CNAME or DNAME RRset that makes the name of q an alias, from the response m of a server of the zone
// z. It returns false if there is none. For DNAME, it also adds the synthesized CNAME record.
//
// It ignores records of the alias target, because the servers closest to the target are queried for them. If the RRset
// is unsigned, it adds only the record to follow, because a name has at most one alias (RFC 2181 §10.1).
func (r *parsedResponse) addAlias(m *dns.Msg, z *delegation, q question) bool {
	a := chain.FindAlias(m.Answer, q.name, q.qtype, z.zone)
	if a == nil {
		return false
	}
	first := len(r.answer)
	r.answer = append(r.answer, a.Records...)
	all := len(r.answer)
	if r.addSignatures(m, q, a.Owner, a.Type); len(r.answer) == all && a.Target != "" {
		r.answer = r.answer[:first+1]
	}
	equalizeTTLs(r.answer)
	if a.Synthesized != nil {
		r.answer = append(r.answer, a.Synthesized)
	}
	r.rcode, r.aliasTarget = a.Rcode, a.Target
	return true
}

// findReferralSection returns the section of m that may contain the NS records of a referral, or nil if m is no
// referral.
//
// inAnswer is true if it is the answer section. Some servers that are not authoritative put the NS records there.
func findReferralSection(m *dns.Msg, q question) (ns []dns.RR, inAnswer bool) {
	switch {
	case m.Rcode != dns.RcodeSuccess:
		return nil, false
	case len(m.Answer) == 0:
		return m.Ns, false
	case m.Authoritative || q.qtype == dns.TypeNS || q.qtype == dns.TypeANY || len(m.Ns) > 0:
		return nil, false
	case slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS }):
		return nil, false
	}
	return m.Answer, true
}

// mayBeNoData reports whether a response without an answer may mean that the name has no records of the type (NODATA).
// m must have no SOA record and must not be authoritative.
//
// It returns true if the response has no NS records: otherwise it is a useless referral. It also returns true if a
// recursive server has added the NS records of zone, the zone that was queried.
func mayBeNoData(m *dns.Msg, zone string) bool {
	ns := slices.DeleteFunc(slices.Concat(m.Answer, m.Ns), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
	return len(ns) == 0 || m.RecursionAvailable && !hasNSOfOtherZone(ns, zone)
}

// readReferral returns the delegation in the referral m, a response to q from a server of the zone z. ns is the section
// with the NS records.
//
// The result is cut: the delegation of a zone that is below z and contains the name of q. It is nil if there is none.
// It must not be changed, because all callers share it. mixed is true if there are also NS records of other zones,
// which are ignored.
//
// The delegation expires no later than z. A zone that its parent has removed therefore does not keep its child zones.
func readReferral(m *dns.Msg, ns []dns.RR, z *delegation, q question, now time.Time) (cut *delegation, mixed bool) {
	name := ""
	for _, rr := range ns {
		h := rr.Header()
		if h.Class != dns.ClassINET {
			continue
		}
		if h.Rrtype == dns.TypeSOA {
			return nil, false
		}
		owner := dnsname.ToLower(h.Name)
		switch {
		case h.Rrtype != dns.TypeNS || owner == name:
		case !dnsname.IsBelow(owner, z.zone) || !dnsname.IsWithin(q.name, owner):
			mixed = true
		default:
			mixed = mixed || name != ""
			if name == "" || dnsname.IsBelow(name, owner) {
				name = owner
			}
		}
	}
	if name == "" || q.qtype == dns.TypeDS && q.name == name { // DS records are in the parent zone
		return nil, false
	}
	if cut = parseDelegation(name, z.zone, ns, m.Extra, now); cut == nil {
		return nil, mixed
	}
	if z.zone != "." && !z.isStub && z.expires.Before(cut.expires) {
		cut.expires = z.expires
	}
	if q.do {
		cut.chain.Parent, cut.chain.DSEvidence, cut.chain.ReceivedAt = z.chain, readDSEvidence(m.Ns, name, z.zone), now
	}
	return cut, mixed
}

// hasNSOfOtherZone reports whether there is an NS record whose owner is neither the zone nor in it.
func hasNSOfOtherZone(rrs []dns.RR, zone string) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool {
		h := rr.Header()
		return h.Rrtype == dns.TypeNS && !dnsname.IsWithin(dnsname.ToLower(h.Name), zone)
	})
}

// findSOA returns the SOA record of a negative answer for a name, or nil if there is none. The owner of the record must
// be in the zone and must contain the name.
//
// It sets the TTL of the record to the TTL of the negative answer (RFC 2308 §5).
func findSOA(rrs []dns.RR, zone, name string) dns.RR {
	for _, rr := range rrs {
		soa, ok := rr.(*dns.SOA)
		if !ok || soa.Hdr.Class != dns.ClassINET {
			continue
		}
		if owner := dnsname.ToLower(soa.Hdr.Name); dnsname.IsWithin(owner, zone) && dnsname.IsWithin(name, owner) {
			soa.Hdr.Ttl = validTTL(soa)
			if soa.Minttl < 1<<31 {
				soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl)
			}
			return soa
		}
	}
	return nil
}

// hasSOA reports whether there is an SOA record among rrs.
func hasSOA(rrs []dns.RR) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
}

// addDenialRecords adds the records of m that prove a denial or the expansion of a wildcard: NSEC and NSEC3 records of
// the authority section. It ignores records outside of the zone.
//
// It also adds their signatures, and those of the SOA record.
func (r *parsedResponse) addDenialRecords(m *dns.Msg, zone string) {
	for _, rr := range m.Ns {
		h := rr.Header()
		t := h.Rrtype
		if sig, ok := rr.(*dns.RRSIG); ok {
			t = sig.TypeCovered
			if t == dns.TypeSOA && (len(r.authority) == 0 || !strings.EqualFold(h.Name, r.authority[0].Header().Name)) {
				continue
			}
		} else if t == dns.TypeSOA {
			continue
		}
		if h.Class == dns.ClassINET && (t == dns.TypeNSEC || t == dns.TypeNSEC3 || t == dns.TypeSOA) && dnsname.IsWithin(dnsname.ToLower(h.Name), zone) {
			h.Ttl = validTTL(rr)
			r.authority = append(r.authority, rr)
		}
	}
}

// addSignatures adds the signatures of one RRset to the answer. These are the RRSIG records in m with the owner name
// and the type covered. It adds none if q lacks the DO bit.
func (r *parsedResponse) addSignatures(m *dns.Msg, q question, name string, covered uint16) {
	if !q.do || covered == dns.TypeANY || covered == dns.TypeRRSIG {
		return
	}
	for _, rrs := range [...][]dns.RR{m.Answer, m.Extra} { // some servers put signatures into the additional section
		for _, rr := range rrs {
			if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == covered && sig.Hdr.Class == dns.ClassINET && strings.EqualFold(sig.Hdr.Name, name) {
				sig.Hdr.Ttl = validTTL(sig)
				r.answer = append(r.answer, sig)
			}
		}
	}
}

// equalizeTTLs sets the TTL of each record to the lowest TTL in its RRset (RFC 2181 §5.2). All records must have the
// same owner name. The signatures that cover one type count as one RRset.
func equalizeTTLs(rrs []dns.RR) {
	type set struct{ typ, covered uint16 }
	setOf := func(rr dns.RR) set {
		if sig, ok := rr.(*dns.RRSIG); ok {
			return set{dns.TypeRRSIG, sig.TypeCovered}
		}
		return set{rr.Header().Rrtype, 0}
	}
	lowest := make(map[set]uint32, 1)
	for _, rr := range rrs {
		k, ttl := setOf(rr), validTTL(rr)
		if old, ok := lowest[k]; ok {
			ttl = min(ttl, old)
		}
		lowest[k] = ttl
	}
	for _, rr := range rrs {
		rr.Header().Ttl = lowest[setOf(rr)]
	}
}

// emptyAnswerTTL is the time for which the Resolver caches an answer without records. Clients cannot cache it, because
// it has no SOA record with a TTL (RFC 2308 §5).
const emptyAnswerTTL = 5 * time.Second

// finishParsing removes duplicate records from the response (RFC 2181 §5), and computes its TTL, which is the lowest
// TTL of its records.
func (r *parsedResponse) finishParsing() {
	for _, rrs := range [...]*[]dns.RR{&r.answer, &r.authority} {
		*rrs = removeDuplicates(*rrs)
	}
	ttl := uint32(maxTTL / time.Second)
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			ttl = min(ttl, rr.Header().Ttl)
		}
	}
	if r.isEmpty() {
		ttl = uint32(emptyAnswerTTL / time.Second)
	}
	r.ttl = time.Duration(ttl) * time.Second
}
