package recursor

import (
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// A responseKind classifies a response of a server by the next action: to accept the response, to follow a referral, or
// to query another server.
type responseKind int8

const (
	kindLame             responseKind = iota // the server does not serve the zone
	kindFailed                               // the server cannot answer
	kindMinimisedRefused                     // error RCODE for a minimised question, so that the full question must be sent
	kindReferral                             // referral to the servers of another zone
	kindAnswer                               // records, an alias, or a denial
)

// A parsedResponse is a response of a zone's server after scrubbing: it has no records outside of the server's zone,
// and none that do not answer the question. It must not be changed once several goroutines share it.
//
// In the embedded chain.Response, Answer holds the records of the question's name, or its alias. Authority holds the
// SOA record and, if the question has DO, the records that prove a denial. Zone is nil if the answer was made without a
// query.
type parsedResponse struct {
	chain.Response
	kind              responseKind
	invalidSignatures bool            // the check on arrival found invalid or missing signatures; after the task, also that no other server has a better response
	isUnsigned        bool            // the check on arrival found no signatures
	isAnchored        bool            // a referral whose signatures the name does not need, see chain.Validator.HasAnchorBelow
	isFallback        bool            // the response is dubious, and is used only if no better response comes
	nonAuthoritative  bool            // fallback from a recursive server, or without NS and SOA records
	aliasTarget       string          // name to resolve next; "" if the response is no alias
	cnameHint         *parsedResponse // records of the alias target in the same response, see readCNAMEHint; nil if there are none
	ttl               time.Duration   // time for which the response may be cached
	referral          *delegation     // delegation, if the response is a referral; otherwise nil
	scrubbed          int             // number of ignored records in the answer and authority sections
	cached            bool            // the response is from the cache
}

// isEmpty reports whether the response has no records, neither an answer nor a denial.
func (r *parsedResponse) isEmpty() bool { return len(r.Answer)+len(r.Authority) == 0 }

// limitTTL lowers the TTL of a secure response to the lifetime of its signatures, for which it may be cached.
func (r *parsedResponse) limitTTL() {
	if r.Status == validate.Secure {
		r.ttl = min(r.ttl, time.Duration(r.TTL)*time.Second)
	}
}

// fallbackRank returns how useful a response is if no response is accepted: the one with the highest rank is then used.
// It is negative for a response with invalid signatures or from a server that is not authoritative.
func (r *parsedResponse) fallbackRank() int {
	switch {
	case r.invalidSignatures && !r.isAnchored:
		return -3
	case r.invalidSignatures:
		return -2
	case r.nonAuthoritative:
		return -1
	case len(r.Answer) > 0:
		return 3
	case r.referral != nil:
		return 2
	case len(r.Authority) > 0:
		return 1
	}
	return 0
}

// agreesWith reports whether r confirms o, a response to the same question from another server that is not trusted
// alone. Both must have the same response code and fallbackRank, and r must be authoritative. A confirmed response is
// used without a query to a third server.
func (r *parsedResponse) agreesWith(o *parsedResponse) bool {
	return !r.nonAuthoritative && r.fallbackRank() == o.fallbackRank() && r.Rcode == o.Rcode
}

// readResponse classifies the response m from a server of the zone z, and extracts the records that answer q. It
// ignores all other records (scrubbing). now is the time of arrival.
//
// fullName is false if the name of q is minimised (RFC 9156). A failure code then results in kindMinimisedRefused,
// because a server may refuse only minimised names.
func readResponse(m *dns.Msg, z *delegation, q question, fullName bool, now time.Time) *parsedResponse {
	base := chain.Response{Zone: z.chain, Name: q.name, Type: q.qtype}
	switch m.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
	default:
		if !fullName && (m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
			return &parsedResponse{kind: kindMinimisedRefused, Response: base}
		}
		if m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeNotAuth {
			return &parsedResponse{kind: kindLame, Response: base}
		}
		return &parsedResponse{kind: kindFailed, Response: base}
	}
	if ns, inAnswer := findReferralSection(m, q); ns != nil {
		if cut, mixed := readReferral(m, ns, z, q, now); cut != nil {
			return &parsedResponse{kind: kindReferral, Response: base, isFallback: m.Authoritative || mixed || inAnswer, referral: cut}
		}
	}
	r := &parsedResponse{kind: kindAnswer, Response: base, isFallback: fullName && !m.Authoritative && !z.isStub}
	if r.nonAuthoritative = !m.Authoritative && m.RecursionAvailable && !z.isStub; r.nonAuthoritative && !fullName {
		return &parsedResponse{kind: kindLame, Response: base}
	}
	switch {
	case r.addAlias(m, z, q):
	case m.Rcode != dns.RcodeYXDomain && r.addAnswerRecords(m, q): // with YXDOMAIN, records cannot be an answer
	case m.Rcode == dns.RcodeYXDomain:
		return &parsedResponse{kind: kindFailed, Response: base}
	case r.addReferralDS(m, z, q):
	default:
		soa := findSOA(m.Ns, z.zone, q.name)
		switch {
		case soa != nil:
			r.Rcode = m.Rcode
			r.Authority = append(r.Authority, soa)
		case !m.Authoritative && !z.isStub:
			if !fullName || !mayBeNoData(m, z.zone) {
				return &parsedResponse{kind: kindLame, Response: base}
			}
			r.Rcode, r.nonAuthoritative = m.Rcode, true
		case m.Rcode == dns.RcodeNameError:
			r.Rcode = m.Rcode
			r.isFallback = r.isFallback || fullName && !z.isStub && hasSOA(m.Ns) // the SOA record is of another zone
		default:
			if hasOutOfZoneNS(m.Ns, z.zone) {
				return &parsedResponse{kind: kindLame, Response: base}
			}
			r.isFallback = fullName && !z.isStub
		}
	}
	if r.kind == kindFailed {
		return &parsedResponse{kind: kindFailed, Response: base}
	}
	if q.do {
		r.addDenialRecords(m, z.zone)
	}
	r.finishParsing()
	r.scrubbed = max(0, len(m.Answer)+len(m.Ns)-len(r.Answer)-len(r.Authority))
	return r
}

// addAnswerRecords adds the records of the response m that answer q, with their signatures. It returns false if there
// are none.
//
// For ANY, it adds at most as many types as the validator accepts. A response to ANY may be partial (RFC 8482 §4.1).
func (r *parsedResponse) addAnswerRecords(m *dns.Msg, q question) bool {
	var types []uint16
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || h.Rrtype != q.qtype && q.qtype != dns.TypeANY || !strings.EqualFold(h.Name, q.name) {
			continue
		}
		if q.qtype == dns.TypeANY {
			if t := chain.CoveredType(rr); !slices.Contains(types, t) {
				if len(types) == validate.MaxSignedRRsets {
					continue
				}
				types = append(types, t)
			}
		}
		r.Answer = append(r.Answer, rr)
	}
	if len(r.Answer) == 0 {
		return false
	}
	equalizeTTLs(r.Answer)
	if q.do && q.qtype != dns.TypeANY && q.qtype != dns.TypeRRSIG {
		r.addSignatures(m, q.name, q.qtype)
	}
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
	proof := selectDSProof(m.Ns, q.name, z.zone)
	if len(proof) == 0 {
		return false
	}
	if r.isFallback = false; slices.ContainsFunc(proof, isDS) {
		r.Answer = proof
		equalizeTTLs(r.Answer)
	}
	return true
}

// addAlias adds to r the CNAME or DNAME RRset in the message m that makes the name of q an alias. For DNAME, it also
// adds the CNAME record that results from it. It returns false if m has no alias for the name. z is the zone of the
// server that sent m.
//
// Records of the alias target are not added, because the servers of the target's zone are queried for them. Of an
// unsigned RRset, only the first record is added, because a name has at most one alias (RFC 2181 §10.1). If there are
// several DNAME records, it sets the kind to kindFailed.
func (r *parsedResponse) addAlias(m *dns.Msg, z *delegation, q question) bool {
	a := chain.FindAlias(m.Answer, q.name, q.qtype, z.zone)
	if a == nil {
		return false
	}
	if a.Type == dns.TypeDNAME && chain.IsAmbiguous(a.Records) {
		r.kind = kindFailed
		return true
	}
	first := len(r.Answer)
	r.Answer = append(r.Answer, a.Records...)
	all := len(r.Answer)
	if q.do {
		r.addSignatures(m, a.Owner, a.Type)
	}
	if len(r.Answer) == all && a.Target != "" {
		r.Answer = r.Answer[:first+1]
	}
	equalizeTTLs(r.Answer)
	if a.Synthesized != nil {
		r.Answer = append(r.Answer, a.Synthesized)
	}
	r.Rcode, r.aliasTarget = a.Rcode, a.Target
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

// mayBeNoData reports whether the response m, which has no answer, may mean that the name has no records of the type
// (NODATA). m must have no SOA record and must not be authoritative.
//
// It returns true if m has no NS records, or if a recursive server has added the NS records of the queried zone. With
// other NS records, m is a useless referral.
func mayBeNoData(m *dns.Msg, zone string) bool {
	ns := slices.DeleteFunc(slices.Concat(m.Answer, m.Ns), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
	return len(ns) == 0 || m.RecursionAvailable && !hasOutOfZoneNS(ns, zone)
}

// readReferral returns the delegation in the referral m, a response to q from a server of the zone z. ns is the section
// of m with the NS records, and now the time of arrival.
//
// cut is the delegation of a zone that is below z and contains the name of q, or nil if m has none. It must not be
// changed, because all callers share it. mixed is true if m also has NS records of other zones, which are ignored.
//
// The delegation expires no later than that of z. Otherwise the child zones of a removed zone would remain in use.
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
		cut.chain.Parent, cut.chain.DSEvidence, cut.chain.ReceivedAt = z.chain, selectDSProof(m.Ns, name, z.zone), now
	}
	return cut, mixed
}

// selectDSProof returns the records in a referral that prove whether the child zone called name is signed. These are
// DS records, or else the NSEC and NSEC3 records that prove that there are none, with signatures.
//
// ns is the authority section of the referral, and parent is the zone that has sent it.
func selectDSProof(ns []dns.RR, name, parent string) []dns.RR {
	var ds, denial []dns.RR
	for _, rr := range ns {
		h := rr.Header()
		owner := dnsname.ToLower(h.Name)
		if h.Class != dns.ClassINET || !dnsname.IsBelow(owner, parent) && owner != parent {
			continue
		}
		switch t := chain.CoveredType(rr); {
		case t == dns.TypeDS && owner == name:
			ds = append(ds, rr)
		case t == dns.TypeNSEC || t == dns.TypeNSEC3:
			denial = append(denial, rr)
		}
	}
	if slices.ContainsFunc(ds, isDS) {
		denial = nil
	}
	all := append(ds, denial...)
	for _, rr := range all {
		rr.Header().Ttl = effectiveTTL(rr)
	}
	return all[:min(len(all), nameservers.MaxEvidence)]
}

// hasOutOfZoneNS reports whether rrs has an NS record whose owner is outside of the zone.
func hasOutOfZoneNS(rrs []dns.RR, zone string) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool {
		h := rr.Header()
		return h.Rrtype == dns.TypeNS && !dnsname.IsWithin(dnsname.ToLower(h.Name), zone)
	})
}

// findSOA returns the SOA record in rrs of a negative answer for a name, or nil if there is none. The owner of the
// record must be in the zone and must contain the name.
//
// It sets the TTL of the record to the TTL of the negative answer (RFC 2308 §5).
func findSOA(rrs []dns.RR, zone, name string) dns.RR {
	for _, rr := range rrs {
		soa, ok := rr.(*dns.SOA)
		if !ok || soa.Hdr.Class != dns.ClassINET {
			continue
		}
		if owner := dnsname.ToLower(soa.Hdr.Name); dnsname.IsWithin(owner, zone) && dnsname.IsWithin(name, owner) {
			soa.Hdr.Ttl = effectiveTTL(soa)
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

// addDenialRecords adds the NSEC and NSEC3 records in the authority section of the response m to r, with their
// signatures. They prove a denial or the expansion of a wildcard. It ignores records outside of the zone.
//
// It also adds the signatures of the SOA record.
func (r *parsedResponse) addDenialRecords(m *dns.Msg, zone string) {
	for _, rr := range m.Ns {
		h := rr.Header()
		t := h.Rrtype
		if sig, ok := rr.(*dns.RRSIG); ok {
			t = sig.TypeCovered
			if t == dns.TypeSOA && (len(r.Authority) == 0 || !strings.EqualFold(h.Name, r.Authority[0].Header().Name)) {
				continue
			}
		} else if t == dns.TypeSOA {
			continue
		}
		if h.Class == dns.ClassINET && (t == dns.TypeNSEC || t == dns.TypeNSEC3 || t == dns.TypeSOA) && dnsname.IsWithin(dnsname.ToLower(h.Name), zone) {
			h.Ttl = effectiveTTL(rr)
			r.Authority = append(r.Authority, rr)
		}
	}
}

// addSignatures adds the signatures of one RRset to the answer in r. These are the RRSIG records in the message m with
// the owner name, and with covered as the type that they sign.
func (r *parsedResponse) addSignatures(m *dns.Msg, name string, covered uint16) {
	for _, sig := range chain.SelectSignatures(name, covered, m.Answer, m.Extra) { // some servers put signatures into the additional section
		sig.Header().Ttl = effectiveTTL(sig)
		r.Answer = append(r.Answer, sig)
	}
}

// emptyAnswerTTL is the time for which the Resolver caches an answer without records. Clients cannot cache it, because
// it has no SOA record with a TTL (RFC 2308 §5).
const emptyAnswerTTL = 5 * time.Second

// finishParsing removes duplicate records from the response (RFC 2181 §5), and computes its TTL, which is the lowest
// TTL of its records.
func (r *parsedResponse) finishParsing() {
	for _, rrs := range [...]*[]dns.RR{&r.Answer, &r.Authority} {
		*rrs = removeDuplicates(*rrs)
	}
	ttl := uint32(maxTTL / time.Second)
	for _, rrs := range [...][]dns.RR{r.Answer, r.Authority} {
		for _, rr := range rrs {
			ttl = min(ttl, rr.Header().Ttl)
		}
	}
	if r.isEmpty() {
		ttl = uint32(emptyAnswerTTL / time.Second)
	}
	r.ttl = time.Duration(ttl) * time.Second
}
