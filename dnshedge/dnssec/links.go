package dnssec

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

// link is what a response says of one name: the records that were asked for, an alias, or that there is nothing.
type link struct {
	chain.Said
	next string // the name to go on with; "": it is the end
	bare bool   // there is nothing, nor an SOA record that says so
}

// linkOf returns what a response says of a name, which need not be the one that was asked for.
func linkOf(r *dns.Msg, name string, qtype uint16) *link {
	l := &link{Said: chain.Said{Name: name, Type: qtype, Rcode: dns.RcodeSuccess}}
	if a := chain.FindAlias(r.Answer, name, qtype, "."); a != nil {
		l.Answer, l.Authority = setOf(r.Answer, a.Owner, a.Type), proofs(r.Ns)
		if a.Made != nil {
			l.Answer = append(l.Answer, a.Made)
		}
		l.Rcode, l.next = a.Rcode, a.Next
		return l
	}
	if l.Answer = setOf(r.Answer, name, qtype); len(l.Answer) > 0 {
		l.Authority = proofs(r.Ns)
		return l
	}
	l.Rcode, l.Authority = r.Rcode, slices.DeleteFunc(slices.Clone(r.Ns), isForeign)
	l.bare = r.Rcode == dns.RcodeSuccess && !slices.ContainsFunc(r.Ns, isSOA)
	return l
}

// setOf returns the records of a name and type, or of all types, with their signatures; none if there are but signatures that were not
// asked for.
func setOf(rrs []dns.RR, name string, qtype uint16) (set []dns.RR) {
	var sigs []dns.RR
	for _, rr := range rrs {
		h := rr.Header()
		if isForeign(rr) || dnsname.Lower(h.Name) != name {
			continue
		}
		sig, is := rr.(*dns.RRSIG)
		switch {
		case is && qtype != dns.TypeRRSIG:
			if sig.TypeCovered == qtype || qtype == dns.TypeANY {
				sigs = append(sigs, rr)
			}
		case h.Rrtype == qtype || qtype == dns.TypeANY:
			set = append(set, rr)
		}
	}
	if len(set) == 0 {
		return nil
	}
	if _, ok := set[0].(*dns.CNAME); !ok && qtype == dns.TypeCNAME {
		return nil // what package dns cannot read leads nowhere
	}
	return append(set, sigs...)
}

// isForeign reports whether a record is of another class than IN.
func isForeign(rr dns.RR) bool { return rr.Header().Class != dns.ClassINET }

// isSOA reports whether a record says that there is nothing (RFC 2308 §2). Proofs alone may be those of an alias that was made of a wildcard.
func isSOA(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA }

// proofs returns the records that prove that a wildcard is the nearest name, with their signatures.
func proofs(ns []dns.RR) (all []dns.RR) {
	for _, rr := range ns {
		t := rr.Header().Rrtype
		if sig, ok := rr.(*dns.RRSIG); ok {
			t = sig.TypeCovered
		}
		if (t == dns.TypeNSEC || t == dns.TypeNSEC3) && !isForeign(rr) {
			all = append(all, rr)
		}
	}
	return all
}
