package recursor

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// errPoor is why a response is not taken that is taken if there is no better one.
var errPoor = errors.New("recursor: response says too little")

// kind is what a response amounts to.
type kind int8

const (
	isLame     kind = iota // the server does not serve the zone, or cannot answer
	isRefused              // to a name that is not the whole one: ask the whole name
	isReferral             // another zone's servers know
	isAnswer               // of records, an alias, or that there are none
)

// verdict is what is believed of a response.
type verdict struct {
	kind      kind
	poor      bool // better than nothing
	rcode     int
	answer    []dns.RR // from the name of the question on, along its aliases
	authority []dns.RR // why there is no answer; for DO, what proves it
	next      string   // the name to go on with, which the last alias points to; or ""
	aliases   int      // followed to there
	ttl       time.Duration
	cut       *delegation // that a referral is to
	scrubbed  int         // records that were not believed
}

// read reads a response of a server of zone z to q. If q is not the whole question, the rcodes
// of servers that do not like that are no reason to ask others.
func read(m *dns.Msg, z *delegation, q question, whole bool, now time.Time) *verdict {
	switch m.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain:
	default:
		if !whole && (m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused || m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
			return &verdict{kind: isRefused}
		}
		return &verdict{kind: isLame}
	}
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 {
		if cut := readReferral(m, z, q, now); cut != nil {
			return &verdict{kind: isReferral, poor: m.Authoritative, cut: cut}
		}
	}
	if !m.Authoritative && m.RecursionAvailable && !z.stub {
		return &verdict{kind: isLame}
	}
	r := &verdict{kind: isAnswer, poor: whole && !m.Authoritative && !z.stub}
	name := r.follow(m, z, q)
	switch {
	case r.rcode == dns.RcodeYXDomain, r.next == "" && len(r.answer) > 0: // the answer is whole
	case m.Rcode == dns.RcodeYXDomain:
		return &verdict{kind: isLame}
	default:
		soa := findSOA(m.Ns, z.zone, name)
		switch {
		case soa != nil:
			r.rcode, r.next = m.Rcode, ""
			r.authority = append(r.authority, soa)
		case r.next != "": // an alias leads on
		case !m.Authoritative && !z.stub:
			return &verdict{kind: isLame}
		case m.Rcode == dns.RcodeSuccess:
			if !z.stub && refersAway(m.Ns, z.zone) {
				return &verdict{kind: isLame}
			}
			r.poor = whole && !z.stub
		case hasSOA(m.Ns): // of another zone
			return &verdict{kind: isLame}
		default:
			r.rcode = m.Rcode
		}
	}
	if q.do {
		r.prove(m, z.zone)
	}
	r.settle()
	r.scrubbed = len(m.Answer) + len(m.Ns) - len(r.answer) - len(r.authority)
	return r
}

// follow takes from a response what answers q: the chain of aliases from its name on, as far
// as it stays in the zone asked, and what the last one has of the type. It returns the name
// where the chain ends, which is also r.next if it has no such records.
func (r *verdict) follow(m *dns.Msg, z *delegation, q question) string {
	name := q.name
	names := []string{name}
	for {
		if r.take(m, name, q.qtype, q.do) {
			r.next = ""
			return name
		}
		target := ""
		if q.qtype != dns.TypeCNAME && q.qtype != dns.TypeANY {
			target = r.takeAlias(m, z, name, q)
		}
		if target == "" {
			return name
		}
		r.aliases++
		r.next = target
		if !within(target, z.zone) || slices.Contains(names, target) || len(names) > 16 {
			return target
		}
		name = target
		names = append(names, name)
	}
}

// take appends the records with that name and type, and reports whether there are any.
func (r *verdict) take(m *dns.Msg, name string, qtype uint16, do bool) bool {
	start := len(r.answer)
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || (h.Rrtype != qtype && qtype != dns.TypeANY) || !strings.EqualFold(h.Name, name) {
			continue
		}
		r.answer = append(r.answer, rr)
	}
	found := len(r.answer) > start
	if found {
		level(r.answer[start:])
		if do && qtype != dns.TypeANY && qtype != dns.TypeRRSIG {
			r.answer = appendSignatures(r.answer, m.Answer, name, qtype)
		}
	}
	return found
}

// takeAlias appends the record that makes name an alias, and returns its target, or "". For a
// DNAME record it makes the CNAME record itself (RFC 6672 §3.1); if the target is too long for
// a name, the rcode is YXDOMAIN.
func (r *verdict) takeAlias(m *dns.Msg, z *delegation, name string, q question) string {
	if d := findDNAME(m, z, name); d != nil {
		owner := lower(d.Hdr.Name)
		d.Hdr.Ttl = ttlOf(d)
		if !slices.Contains(r.answer, dns.RR(d)) {
			r.answer = append(r.answer, d)
			if q.do {
				r.answer = appendSignatures(r.answer, m.Answer, owner, dns.TypeDNAME)
			}
		}
		target := substitute(name, owner, lower(d.Target))
		if target == "" {
			r.rcode, r.next = dns.RcodeYXDomain, ""
			return ""
		}
		r.answer = append(r.answer, &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: d.Hdr.Ttl}, Target: target})
		return target
	}
	for _, rr := range m.Answer {
		if c, ok := rr.(*dns.CNAME); ok && c.Hdr.Class == dns.ClassINET && strings.EqualFold(c.Hdr.Name, name) {
			c.Hdr.Ttl = ttlOf(c)
			r.answer = append(r.answer, c)
			if q.do {
				r.answer = appendSignatures(r.answer, m.Answer, name, dns.TypeCNAME)
			}
			return lower(c.Target)
		}
	}
	return ""
}

// findDNAME returns the DNAME record of a response that name is below, or nil.
func findDNAME(m *dns.Msg, z *delegation, name string) *dns.DNAME {
	for _, rr := range m.Answer {
		if d, ok := rr.(*dns.DNAME); ok && d.Hdr.Class == dns.ClassINET && below(name, lower(d.Hdr.Name)) && within(lower(d.Hdr.Name), z.zone) {
			return d
		}
	}
	return nil
}

// substitute returns what name, which is below owner, becomes by a DNAME record, or "" if that
// is longer than names may be (RFC 6672 §2.2).
func substitute(name, owner, target string) string {
	prefix := name
	if owner != "." {
		prefix = name[:len(name)-len(owner)]
	}
	if target == "." {
		return prefix
	}
	if name = prefix + target; inWire(name) > 255 {
		return ""
	}
	return name
}

// readReferral returns the zone that a response refers to, or nil: one below the zone asked,
// that q's name is in. NS records of other zones are nobody's word.
func readReferral(m *dns.Msg, z *delegation, q question, now time.Time) *delegation {
	cut := ""
	for _, rr := range m.Ns {
		h := rr.Header()
		if h.Class != dns.ClassINET {
			continue
		}
		if h.Rrtype == dns.TypeSOA {
			return nil
		}
		owner := lower(h.Name)
		if h.Rrtype != dns.TypeNS || owner == cut || !below(owner, z.zone) || !within(q.name, owner) {
			continue
		}
		if cut != "" {
			return nil
		}
		cut = owner
	}
	if cut == "" || q.qtype == dns.TypeDS && q.name == cut { // the one asked knows about DS
		return nil
	}
	return newDelegation(cut, z.zone, m.Ns, m.Extra, now)
}

// refersAway reports whether there are NS records of a zone that is neither the one asked nor
// below it.
func refersAway(rrs []dns.RR, zone string) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool {
		h := rr.Header()
		return h.Rrtype == dns.TypeNS && !within(lower(h.Name), zone)
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
		if owner := lower(soa.Hdr.Name); within(owner, zone) && within(name, owner) {
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
		if h.Class == dns.ClassINET && (t == dns.TypeNSEC || t == dns.TypeNSEC3 || t == dns.TypeSOA) && within(lower(h.Name), zone) {
			h.Ttl = ttlOf(rr)
			r.authority = append(r.authority, rr)
		}
	}
}

// appendSignatures appends the signatures of an RRset.
func appendSignatures(to, rrs []dns.RR, name string, covered uint16) []dns.RR {
	for _, rr := range rrs {
		if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == covered && sig.Hdr.Class == dns.ClassINET && strings.EqualFold(sig.Hdr.Name, name) {
			sig.Hdr.Ttl = ttlOf(sig)
			to = append(to, sig)
		}
	}
	return to
}

// level gives the records of an RRset their lowest TTL (RFC 2181 §5.2).
func level(rrs []dns.RR) {
	ttl := ttlOf(rrs[0])
	for _, rr := range rrs[1:] {
		ttl = min(ttl, ttlOf(rr))
	}
	for _, rr := range rrs {
		rr.Header().Ttl = ttl
	}
}

// settle sets how long the reply may be kept.
func (r *verdict) settle() {
	ttl := uint32(maxTTL / time.Second)
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			ttl = min(ttl, rr.Header().Ttl)
		}
	}
	if len(r.answer)+len(r.authority) == 0 {
		ttl = 0 // RFC 2308 §5: without SOA
	}
	r.ttl = time.Duration(ttl) * time.Second
}

// judge reads the responses to one task, and remembers what they amount to.
type judge struct {
	zone  *delegation
	q     question
	whole bool

	taken *verdict
	poor  atomic.Pointer[verdict] // the first
}

// judge is a task's.
func (j *judge) judge(m *dns.Msg, _ netip.AddrPort) error {
	r := read(m, j.zone, j.q, j.whole, time.Now())
	switch {
	case r.kind == isLame:
		return errLame
	case r.poor:
		j.poor.CompareAndSwap(nil, r)
		return errPoor
	}
	j.taken = r
	return nil
}
