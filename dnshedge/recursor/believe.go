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

// read reads a response of a server of zone z to q. If q is not the whole question, the rcodes
// of servers that do not like that are no reason to ask others.
func read(m *dns.Msg, z *delegation, q question, whole bool, now time.Time) *verdict {
	switch m.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
	default:
		if !whole && (m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
			return &verdict{kind: isRefused}
		}
		if m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeNotAuth {
			return &verdict{kind: isLame}
		}
		return &verdict{kind: isFailed}
	}
	if ns, odd := referral(m, q); ns != nil {
		if cut, mixed := readReferral(m, ns, z, q, now); cut != nil {
			return &verdict{kind: isReferral, poor: m.Authoritative || mixed || odd, cut: cut}
		}
	}
	r := &verdict{kind: isAnswer, poor: whole && !m.Authoritative && !z.stub}
	if r.foreign = !m.Authoritative && m.RecursionAvailable && !z.stub; r.foreign && !whole {
		return &verdict{kind: isLame}
	}
	switch {
	case r.takeAlias(m, z, q):
	case m.Rcode != dns.RcodeYXDomain && r.take(m, q): // no name is too long that has records
	case m.Rcode == dns.RcodeYXDomain:
		return &verdict{kind: isFailed}
	case r.takeReferredDS(m, z, q):
	default:
		soa := findSOA(m.Ns, z.zone, q.name)
		switch {
		case soa != nil:
			r.rcode = m.Rcode
			r.authority = append(r.authority, soa)
		case !m.Authoritative && !z.stub:
			if !whole || !deniesForNobody(m, z.zone) {
				return &verdict{kind: isLame}
			}
			r.rcode, r.foreign = m.Rcode, true
		case m.Rcode == dns.RcodeNameError:
			r.rcode = m.Rcode
			r.poor = r.poor || whole && !z.stub && hasSOA(m.Ns) // of another zone
		default:
			if refersAway(m.Ns, z.zone) {
				return &verdict{kind: isLame}
			}
			r.poor = whole && !z.stub
		}
	}
	if q.do {
		r.prove(m, z.zone)
	}
	r.settle()
	r.scrubbed = max(0, len(m.Answer)+len(m.Ns)-len(r.answer)-len(r.authority))
	return r
}

// take appends the records that answer q, and reports whether there are any. For ANY, which need not be answered with all (RFC 8482 §4.1), they
// are of no more types than are validated.
func (r *verdict) take(m *dns.Msg, q question) bool {
	var types []uint16
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || h.Rrtype != q.qtype && q.qtype != dns.TypeANY || !strings.EqualFold(h.Name, q.name) {
			continue
		}
		if t := covers(rr); q.qtype == dns.TypeANY && !slices.Contains(types, t) {
			if len(types) == validate.MaxSets {
				continue
			}
			types = append(types, t)
		}
		r.answer = append(r.answer, rr)
	}
	if len(r.answer) == 0 {
		return false
	}
	level(r.answer)
	r.sign(m, q, q.name, q.qtype)
	return true
}

// takeReferredDS takes what a referral to the zone whose DS records are asked for says of them, which some servers send in the place of
// the answer, and reports whether there is something.
func (r *verdict) takeReferredDS(m *dns.Msg, z *delegation, q question) bool {
	if q.qtype != dns.TypeDS || !q.do || m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 || hasSOA(m.Ns) || newDelegation(q.name, z.zone, m.Ns, nil, time.Now()) == nil {
		return false
	}
	proof := readProof(m.Ns, q.name, z.zone)
	if len(proof) == 0 {
		return false
	}
	if r.poor = false; slices.ContainsFunc(proof, isDS) {
		r.answer = proof
		level(r.answer)
	}
	return true
}

// takeAlias appends the RRset that makes q's name an alias, and reports whether there is one. Of an RRset without signatures it takes the
// record that is followed alone, because no name can have two aliases (RFC 2181 §10.1). For a DNAME RRset it appends the CNAME record as well. Other records of the target are not taken: the target is asked for at the servers nearest to it.
func (r *verdict) takeAlias(m *dns.Msg, z *delegation, q question) bool {
	a := chain.FindAlias(m.Answer, q.name, q.qtype, z.zone)
	if a == nil {
		return false
	}
	first := len(r.answer)
	r.answer = append(r.answer, a.Records...)
	all := len(r.answer)
	if r.sign(m, q, a.Owner, a.Type); len(r.answer) == all && a.Next != "" {
		r.answer = r.answer[:first+1]
	}
	level(r.answer)
	if a.Made != nil {
		r.answer = append(r.answer, a.Made)
	}
	r.rcode, r.next = a.Rcode, a.Next
	return true
}

// referral returns the section of a response in which there may be a referral, or nil. It is odd in ANSWER, where
// only a server without authority can mean it.
func referral(m *dns.Msg, q question) (ns []dns.RR, odd bool) {
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

// deniesForNobody reports whether a response without authority and an SOA record may mean that there is nothing. One
// that names servers is a referral that leads nowhere, unless a recursor says which servers it would have asked.
func deniesForNobody(m *dns.Msg, zone string) bool {
	ns := slices.DeleteFunc(slices.Concat(m.Answer, m.Ns), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
	return len(ns) == 0 || m.RecursionAvailable && !refersAway(ns, zone)
}

// readReferral returns the zone that a response refers to, or nil: one below the zone asked,
// that q's name is in. It is mixed if there are NS records of other zones as well. Those are
// ignored: the server that was asked does not delegate these zones, and of two that q's name is in,
// the upper one's servers know about the other. The zone ends with that above at the latest, so that one which is gone keeps none below it alive.
// It is not changed any more: all who wait for the response have it.
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
		owner := dnsname.Lower(h.Name)
		switch {
		case h.Rrtype != dns.TypeNS || owner == name:
		case !dnsname.Below(owner, z.zone) || !dnsname.Within(q.name, owner):
			mixed = true
		default:
			mixed = mixed || name != ""
			if name == "" || dnsname.Below(name, owner) {
				name = owner
			}
		}
	}
	if name == "" || q.qtype == dns.TypeDS && q.name == name { // the one asked knows about DS
		return nil, false
	}
	if cut = newDelegation(name, z.zone, ns, m.Extra, now); cut == nil {
		return nil, mixed
	}
	if z.zone != "." && !z.stub && z.expires.Before(cut.expires) {
		cut.expires = z.expires
	}
	if q.do {
		cut.chain.Above, cut.chain.Proof, cut.chain.Came = z.chain, readProof(m.Ns, name, z.zone), now
	}
	return cut, mixed
}

// refersAway reports whether there are NS records of a zone that is neither the one asked nor
// below it.
func refersAway(rrs []dns.RR, zone string) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool {
		h := rr.Header()
		return h.Rrtype == dns.TypeNS && !dnsname.Within(dnsname.Lower(h.Name), zone)
	})
}

// findSOA returns the SOA record that denies what name is asked for: that of a zone that is at
// or below the one asked and that name is in. Its TTL becomes the negative answer's (RFC 2308 §5).
func findSOA(rrs []dns.RR, zone, name string) dns.RR {
	for _, rr := range rrs {
		soa, ok := rr.(*dns.SOA)
		if !ok || soa.Hdr.Class != dns.ClassINET {
			continue
		}
		if owner := dnsname.Lower(soa.Hdr.Name); dnsname.Within(owner, zone) && dnsname.Within(name, owner) {
			soa.Hdr.Ttl = ttlOf(soa)
			if soa.Minttl < 1<<31 {
				soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl)
			}
			return soa
		}
	}
	return nil
}

func hasSOA(rrs []dns.RR) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
}

// prove appends the records that prove a denial, or that an answer comes of a wildcard.
func (r *verdict) prove(m *dns.Msg, zone string) {
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
		if h.Class == dns.ClassINET && (t == dns.TypeNSEC || t == dns.TypeNSEC3 || t == dns.TypeSOA) && dnsname.Within(dnsname.Lower(h.Name), zone) {
			h.Ttl = ttlOf(rr)
			r.authority = append(r.authority, rr)
		}
	}
}

// sign appends the signatures of an RRset of the answer, for those who want them.
func (r *verdict) sign(m *dns.Msg, q question, name string, covered uint16) {
	if !q.do || covered == dns.TypeANY || covered == dns.TypeRRSIG {
		return
	}
	for _, rrs := range [...][]dns.RR{m.Answer, m.Extra} { // some put them there
		for _, rr := range rrs {
			if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == covered && sig.Hdr.Class == dns.ClassINET && strings.EqualFold(sig.Hdr.Name, name) {
				sig.Hdr.Ttl = ttlOf(sig)
				r.answer = append(r.answer, sig)
			}
		}
	}
}

// level gives the records of each RRset of a name their lowest TTL (RFC 2181 §5.2). Signatures of
// one type are a set.
func level(rrs []dns.RR) {
	type set struct{ typ, covered uint16 }
	setOf := func(rr dns.RR) set {
		if sig, ok := rr.(*dns.RRSIG); ok {
			return set{dns.TypeRRSIG, sig.TypeCovered}
		}
		return set{rr.Header().Rrtype, 0}
	}
	lowest := make(map[set]uint32, 1)
	for _, rr := range rrs {
		k, ttl := setOf(rr), ttlOf(rr)
		if old, ok := lowest[k]; ok {
			ttl = min(ttl, old)
		}
		lowest[k] = ttl
	}
	for _, rr := range rrs {
		rr.Header().Ttl = lowest[setOf(rr)]
	}
}

// bareTTL is how long it is kept that there are no records, if nothing says how long (RFC 2308 §5). Whoever
// asks can keep it no longer.
const bareTTL = 5 * time.Second

// settle removes records that are there twice (RFC 2181 §5), and sets how long the reply may be kept.
func (r *verdict) settle() {
	for _, rrs := range [...]*[]dns.RR{&r.answer, &r.authority} {
		*rrs = unique(*rrs)
	}
	ttl := uint32(maxTTL / time.Second)
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			ttl = min(ttl, rr.Header().Ttl)
		}
	}
	if r.bare() {
		ttl = uint32(bareTTL / time.Second)
	}
	r.ttl = time.Duration(ttl) * time.Second
}
