package dnssec

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

// aliasLink is what a response says of one name: the records that were asked for, an alias, or that there is nothing.
type aliasLink struct {
	chain.Response
	aliasTarget string // the name to go on with; "": it is the end
	isEmpty     bool   // there is nothing, nor an SOA record that says so
}

// newAliasLink returns what a response says of a name, which need not be the one that was asked for.
func newAliasLink(r *dns.Msg, name string, qtype uint16) *aliasLink {
	l := &aliasLink{Response: chain.Response{Name: name, Type: qtype, Rcode: dns.RcodeSuccess}}
	if a := chain.FindAlias(r.Answer, name, qtype, "."); a != nil {
		l.Answer, l.Authority = selectRRset(r.Answer, a.Owner, a.Type), selectDenialRecords(r.Ns)
		if a.Synthesized != nil {
			l.Answer = append(l.Answer, a.Synthesized)
		}
		l.Rcode, l.aliasTarget = a.Rcode, a.Target
		return l
	}
	if l.Answer = selectRRset(r.Answer, name, qtype); len(l.Answer) > 0 {
		l.Authority = selectDenialRecords(r.Ns)
		return l
	}
	l.Rcode, l.Authority = r.Rcode, slices.DeleteFunc(slices.Clone(r.Ns), isOtherClass)
	l.isEmpty = r.Rcode == dns.RcodeSuccess && !slices.ContainsFunc(r.Ns, isSOA)
	return l
}

// selectRRset returns the records of a name and type, or of all types, with their signatures; none if there are but signatures that were not
// asked for.
func selectRRset(rrs []dns.RR, name string, qtype uint16) (set []dns.RR) {
	var sigs []dns.RR
	for _, rr := range rrs {
		h := rr.Header()
		if isOtherClass(rr) || dnsname.ToLower(h.Name) != name {
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

// isOtherClass reports whether a record is of another class than IN.
func isOtherClass(rr dns.RR) bool { return rr.Header().Class != dns.ClassINET }

// isSOA reports whether a record says that there is nothing (RFC 2308 §2). Proofs alone may be those of an alias that was made of a wildcard.
func isSOA(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA }

// selectDenialRecords returns the records that prove that a wildcard is the nearest name, with their signatures.
func selectDenialRecords(ns []dns.RR) (all []dns.RR) {
	for _, rr := range ns {
		t := rr.Header().Rrtype
		if sig, ok := rr.(*dns.RRSIG); ok {
			t = sig.TypeCovered
		}
		if (t == dns.TypeNSEC || t == dns.TypeNSEC3) && !isOtherClass(rr) {
			all = append(all, rr)
		}
	}
	return all
}
