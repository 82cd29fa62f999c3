package dnssec

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

// An aliasLink is the part of a response for one name, if the response follows a chain of aliases. It holds the records
// of that name, or the alias record, or the denial of the name.
type aliasLink struct {
	chain.Response
	aliasTarget string // next name of the chain; "" if this is the last link
	isEmpty     bool   // the response has neither records nor an SOA record for the name, so that the name must be queried
}

// newAliasLink extracts the records for one name from the response r. This is the name of the question, or the target
// of an alias in r. Each name of an alias chain is validated separately. qtype is the type of the question.
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
	l.Rcode, l.Authority = r.Rcode, slices.DeleteFunc(slices.Clone(r.Ns), hasOtherClass)
	l.isEmpty = r.Rcode == dns.RcodeSuccess && !slices.ContainsFunc(r.Ns, isSOA)
	return l
}

// selectRRset returns the records of class IN with the given name and type, followed by the signatures that cover them.
// For type ANY, it returns the records of all types.
//
// It returns nil if there are only signatures, unless qtype is RRSIG.
func selectRRset(rrs []dns.RR, name string, qtype uint16) (set []dns.RR) {
	if qtype != dns.TypeANY {
		if set = chain.SelectRRset(rrs, name, qtype); len(set) == 0 || qtype == dns.TypeRRSIG {
			return set
		}
		if _, ok := set[0].(*dns.CNAME); !ok && qtype == dns.TypeCNAME {
			return nil // an unparsed CNAME record has no target
		}
		return append(set, chain.SelectSignatures(name, qtype, rrs)...)
	}
	var sigs []dns.RR
	for _, rr := range rrs {
		if hasOtherClass(rr) || dnsname.ToLower(rr.Header().Name) != name {
			continue
		}
		if _, is := rr.(*dns.RRSIG); is {
			sigs = append(sigs, rr)
		} else {
			set = append(set, rr)
		}
	}
	if len(set) == 0 {
		return nil
	}
	return append(set, sigs...)
}

// hasOtherClass reports whether a record has another class than IN.
func hasOtherClass(rr dns.RR) bool { return rr.Header().Class != dns.ClassINET }

// isSOA reports whether a record is an SOA record. In the authority section, an SOA record marks a negative answer (RFC
// 2308 §2). NSEC records do not, because they can also prove the expansion of a wildcard.
func isSOA(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA }

// selectDenialRecords returns the NSEC and NSEC3 records of class IN in ns, an authority section, with the signatures
// that cover them.
func selectDenialRecords(ns []dns.RR) (all []dns.RR) {
	for _, rr := range ns {
		if t := chain.CoveredType(rr); (t == dns.TypeNSEC || t == dns.TypeNSEC3) && !hasOtherClass(rr) {
			all = append(all, rr)
		}
	}
	return all
}
