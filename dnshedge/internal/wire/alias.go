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

// UnresolvedAlias returns the target of the last CNAME record in the chain that begins at the question's name, in wire
// format. ok is true if the response does not resolve the target, so that the caller must query it.
//
// ok is false if:
//   - there is no CNAME record for the question's name;
//   - a.Outcome is not NoData: for example, there are records of the question's type;
//   - there is an SOA record, so the target has no records (RFC 2308 §2.2);
//   - the server is recursive (RA), and has followed the CNAMEs itself (NODATA of type 3).
func (a *Answer) UnresolvedAlias() (target string, ok bool) {
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

// AppendAliasTarget completes a response with an alias. target is the response for the name that a.UnresolvedAlias has
// returned. Its answer records are appended to the answer section of a. The other sections, the response code and the
// outcome become those of target.
//
// RA is set. AA and AD remain set only if target has them too. The extended errors of target are added to those of a.
// target does not change. The error means that the result does not fit in a message.
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
