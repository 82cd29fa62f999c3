package chain

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// An Alias is the RRset of a response that makes a name an alias: CNAME records at the name, or DNAME records at an
// ancestor.
type Alias struct {
	Owner   string   // owner of the RRset, in lower case
	Type    uint16   // CNAME or DNAME
	Records []dns.RR // the whole RRset without signatures, in the order of the response
	// Synthesized is the CNAME record that the DNAME record synthesizes (RFC 6672 §3.1). It is nil for CNAME records, and
	// if the target is too long for a name.
	Synthesized *dns.CNAME
	Target      string // in lower case; "": the alias must not be followed
	Rcode       int    // YXDOMAIN if the target is too long for a name
}

// FindAlias returns the alias of a name in the answer section of a response, or nil if there is none. name is in lower
// case. Records outside of the zone, and of classes other than IN, are ignored.
//
// A DNAME record above the name precedes CNAME records at the name, because nothing exists below a DNAME record (RFC
// 6672 §2.4). Of several DNAME records, the one nearest to the name applies. The target is that of the first record of
// the RRset. Records has the whole RRset, because its signature covers all records.
func FindAlias(answer []dns.RR, name string, qtype uint16, zone string) *Alias {
	if first := nearestDNAME(answer, name, zone); first != nil {
		a := newAlias(answer, dnsname.ToLower(first.Hdr.Name), dns.TypeDNAME)
		a.applyDNAME(name, qtype, first)
		return a
	}
	if qtype == dns.TypeCNAME || qtype == dns.TypeANY || canCoexistWithCNAME(qtype) && slices.ContainsFunc(answer, matchRecord(name, qtype)) {
		return nil
	}
	for _, rr := range answer {
		if first, ok := rr.(*dns.CNAME); ok && matchRecord(name, dns.TypeCNAME)(rr) {
			a := newAlias(answer, name, dns.TypeCNAME)
			a.Target = dnsname.ToLower(first.Target)
			return a
		}
	}
	return nil
}

// nearestDNAME returns the first record of the DNAME RRset whose owner is the nearest ancestor of the name, or nil.
func nearestDNAME(answer []dns.RR, name, zone string) (nearest *dns.DNAME) {
	for _, rr := range answer {
		d, ok := rr.(*dns.DNAME)
		if !ok || d.Hdr.Class != dns.ClassINET {
			continue
		}
		owner := dnsname.ToLower(d.Hdr.Name)
		if dnsname.IsBelow(name, owner) && dnsname.IsWithin(owner, zone) && (nearest == nil || dnsname.IsBelow(owner, dnsname.ToLower(nearest.Hdr.Name))) {
			nearest = d
		}
	}
	return nearest
}

// newAlias returns an Alias with the records of the given owner and type.
func newAlias(answer []dns.RR, owner string, typ uint16) *Alias {
	a := &Alias{Owner: owner, Type: typ, Rcode: dns.RcodeSuccess}
	for _, rr := range answer {
		if matchRecord(owner, typ)(rr) {
			a.Records = append(a.Records, rr)
		}
	}
	return a
}

// applyDNAME sets the target, and the CNAME record that the DNAME record d synthesizes for a name. The CNAME record has
// the minimum TTL of the DNAME RRset.
func (a *Alias) applyDNAME(name string, qtype uint16, d *dns.DNAME) {
	target := dnsname.ApplyDNAME(name, a.Owner, dnsname.ToLower(d.Target))
	if target == "" {
		a.Rcode = dns.RcodeYXDomain
		return
	}
	ttl := validate.ValidTTL(d.Hdr.Ttl)
	for _, rr := range a.Records {
		ttl = min(ttl, validate.ValidTTL(rr.Header().Ttl))
	}
	a.Synthesized = &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl}, Target: target}
	if qtype != dns.TypeCNAME && qtype != dns.TypeANY {
		a.Target = target
	}
}

// matchRecord returns a function that reports whether a record of class IN has the given type and name, in lower case.
func matchRecord(name string, typ uint16) func(dns.RR) bool {
	return func(rr dns.RR) bool {
		h := rr.Header()
		return h.Class == dns.ClassINET && h.Rrtype == typ && dnsname.ToLower(h.Name) == name
	}
}

// canCoexistWithCNAME reports whether a name with a CNAME record may also have records of a type. Only types of DNSSEC
// may (RFC 4034 §3, RFC 4035 §2.5, RFC 2535 §2.3.5, RFC 1034 §3.6.2).
func canCoexistWithCNAME(qtype uint16) bool {
	switch qtype {
	case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT:
		return true
	}
	return false
}
