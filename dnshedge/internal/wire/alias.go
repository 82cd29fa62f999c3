package wire

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Renamed returns the query for another name, in wire format.
func (q *Query) Renamed(name string) *Query {
	r := *q
	r.Name, r.spelled = name, false
	return &r
}

// OpenAlias returns the last target of the aliases in an answer that says nothing about it: neither with a record nor, by an SOA record,
// that there is none (RFC 2308 §2.2). A server with recursion (RA) has followed the aliases itself: without an SOA record, its answer is NODATA
// of type 3. The name is in wire format.
func (a *Answer) OpenAlias() (target string, ok bool) {
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

// Join appends the answer records of target, which answers the question for the open alias of a, see OpenAlias, and takes its response
// code and other sections. Join does not change target.
func (a *Answer) Join(target *Answer) error {
	more, err := unpackMessage(target.packed)
	if err != nil {
		return err
	}
	err = a.Edit(func(m *dns.Msg) bool {
		m.Answer, m.Ns, m.Extra = append(m.Answer, more.Answer...), more.Ns, more.Extra
		m.Rcode = more.Rcode // that of the last name (RFC 6604 §3)
		m.Authoritative = m.Authoritative && more.Authoritative
		m.AuthenticatedData = m.AuthenticatedData && more.AuthenticatedData
		m.RecursionAvailable = true
		return true
	})
	a.Outcome = target.Outcome
	a.EDE = append(a.EDE, target.EDE...)
	return err
}
