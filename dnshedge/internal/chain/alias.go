package chain

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// An Alias holds the records of a response that make a name an alias: its CNAME records, or the DNAME records of an
// ancestor.
type Alias struct {
	Owner   string   // owner name of the RRset, in lower case
	Type    uint16   // CNAME or DNAME
	Records []dns.RR // all records of the RRset without signatures, in the order of the response
	// Synthesized is the CNAME record that the DNAME record generates for the name (RFC 6672 §3.1). It is nil for CNAME
	// records, and if the target is too long for a name.
	Synthesized *dns.CNAME
	Target      string // name that the alias points to, in lower case; "" if the alias must not be followed
	Rcode       int    // YXDOMAIN if the target is too long for a name, otherwise NOERROR
}

// FindAlias returns the alias of a name in the answer section of a response, or nil if the name is not an alias. name
// must be in lower case.
//
// Records outside of the zone, and of classes other than IN, are ignored. DNAME records at an ancestor take precedence
// over CNAME records at the name, because nothing exists below a DNAME record (RFC 6672 §2.4). Of several DNAME
// records, the nearest ancestor's applies. If the RRset has several records, the first record determines the target.
//
// If qtype is CNAME or ANY, a CNAME record at the name is the answer and not an alias.
func FindAlias(answer []dns.RR, name string, qtype uint16, zone string) *Alias {
	if first := nearestDNAME(answer, name, zone); first != nil {
		a := newAlias(answer, dnsname.ToLower(first.Hdr.Name), dns.TypeDNAME)
		a.applyDNAME(name, qtype, first)
		return a
	}
	if qtype == dns.TypeCNAME || qtype == dns.TypeANY || canCoexistWithCNAME(qtype) && slices.ContainsFunc(answer, newRecordMatcher(name, qtype)) {
		return nil
	}
	for _, rr := range answer {
		if first, ok := rr.(*dns.CNAME); ok && newRecordMatcher(name, dns.TypeCNAME)(rr) {
			a := newAlias(answer, name, dns.TypeCNAME)
			a.Target = dnsname.ToLower(first.Target)
			return a
		}
	}
	return nil
}

// nearestDNAME returns the first DNAME record of class IN at the nearest ancestor of the name that has DNAME records.
// answer is the answer section of a response. Owners outside of the zone are ignored. It returns nil if no ancestor has
// DNAME records.
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

// IsAmbiguous reports whether an RRset of CNAME or DNAME records has different records. It must have only one (RFC 2181
// §10.1, RFC 6672 §2.4).
func IsAmbiguous(records []dns.RR) bool {
	return slices.ContainsFunc(records, func(rr dns.RR) bool { return !dns.IsDuplicate(records[0], rr) })
}

// newAlias returns an Alias with the CNAME or DNAME records in answer that have the given owner and type. The caller
// sets Target and Synthesized.
func newAlias(answer []dns.RR, owner string, typ uint16) *Alias {
	return &Alias{Owner: owner, Type: typ, Rcode: dns.RcodeSuccess, Records: SelectRRset(answer, owner, typ)}
}

// applyDNAME applies the DNAME record d to a name: it sets Synthesized to the resulting CNAME record, and Target to the
// new name. If qtype is CNAME or ANY, it does not set Target, because Synthesized is then the answer.
//
// The TTL of Synthesized is the minimum TTL of the DNAME RRset. If the new name is too long, applyDNAME only sets Rcode
// to YXDOMAIN.
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

// newRecordMatcher returns a function that reports whether a record has class IN, the given type and the given owner
// name. name must be in lower case.
func newRecordMatcher(name string, typ uint16) func(dns.RR) bool {
	return func(rr dns.RR) bool {
		h := rr.Header()
		return h.Class == dns.ClassINET && h.Rrtype == typ && dnsname.ToLower(h.Name) == name
	}
}

// canCoexistWithCNAME reports whether a name with a CNAME record may also have records of type qtype. It is true only
// for types of DNSSEC and its predecessors (RFC 4034 §3, RFC 4035 §2.5, RFC 2535 §2.3.5, RFC 1034 §3.6.2).
func canCoexistWithCNAME(qtype uint16) bool {
	switch qtype {
	case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT:
		return true
	}
	return false
}

// SelectRRset returns the records of class IN that have the given owner name and type, without their RRSIG records.
// name must be in lower case.
func SelectRRset(rrs []dns.RR, name string, typ uint16) (set []dns.RR) {
	for _, rr := range rrs {
		if newRecordMatcher(name, typ)(rr) {
			set = append(set, rr)
		}
	}
	return set
}

// SelectSignatures returns the RRSIG records of class IN in all sections that have the given owner name and cover the
// given type. name must be in lower case.
func SelectSignatures(name string, covered uint16, sections ...[]dns.RR) (sigs []dns.RR) {
	for _, rrs := range sections {
		for _, rr := range rrs {
			if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == covered && newRecordMatcher(name, dns.TypeRRSIG)(rr) {
				sigs = append(sigs, rr)
			}
		}
	}
	return sigs
}

// CoveredType returns the type covered by an RRSIG record. For another record, it returns the type of the record.
func CoveredType(rr dns.RR) uint16 {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered
	}
	return rr.Header().Rrtype
}
