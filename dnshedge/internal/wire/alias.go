package wire

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// WithName returns a copy of the query with another name, which must be in wire format.
func (q *Query) WithName(name string) *Query {
	r := *q
	r.Name, r.hasRandomCase = name, false
	return &r
}

// UnresolvedAlias returns the name, in wire format, to which the CNAME records of the question's name lead, if the
// caller must query it. ok is false if a.Outcome is not NoData, there is an SOA or no CNAME record, or the server is
// recursive.
func (a *Answer) UnresolvedAlias() (target string, ok bool) {
	// A recursive server (RA) has followed the CNAMEs itself (NODATA of type 3). With an SOA record, the target has no
	// records (RFC 2308 §2.2).
	if a.Outcome != NoData || a.packed[6]|a.packed[7] == 0 || a.packed[3]&flagRA != 0 {
		return "", false
	}
	m, err := unpackMessage(a.packed)
	if err != nil || slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA }) {
		return "", false
	}
	aliases := make(map[string]string)
	for _, rr := range m.Answer {
		if alias, ok := rr.(*dns.CNAME); ok {
			aliases[strings.ToLower(alias.Hdr.Name)] = alias.Target
		}
	}
	name := m.Question[0].Name
	for range len(aliases) {
		to, more := aliases[strings.ToLower(name)]
		if !more {
			break
		}
		name, ok = to, true
	}
	var b [MaxName]byte
	n, err := dns.PackDomainName(name, b[:], 0, nil, false)
	return string(b[:n]), ok && err == nil
}

// AppendAliasTarget appends to a the answer records and extended errors of target, the response for the name from
// a.UnresolvedAlias. The other sections, response code and outcome become those of target. After an error, for example
// if the result is too long, a is invalid.
func (a *Answer) AppendAliasTarget(target *Answer) error {
	more, err := unpackMessage(target.packed)
	if err != nil {
		return err
	}
	err = a.Edit(func(m *dns.Msg) bool {
		m.Answer, m.Ns, m.Extra = append(m.Answer, more.Answer...), more.Ns, more.Extra
		m.Rcode = more.Rcode // the code of the last name counts (RFC 6604 §3)
		m.Authoritative = m.Authoritative && more.Authoritative
		m.AuthenticatedData = m.AuthenticatedData && more.AuthenticatedData
		m.RecursionAvailable = true
		return true
	})
	a.Outcome = target.Outcome
	a.EDE = append(a.EDE, target.EDE...)
	return err
}
