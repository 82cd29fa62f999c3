package reclab

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// A verdict says whether the answer of a resolver is right, and otherwise what is wrong.
type verdict int

const (
	correct       verdict = iota
	incorrect             // or no answer
	answeredBogus         // a bogus name has an answer
	wrongAD               // AD is set though the chain is not secure, or is not set though it is
)

// checkAnswer compares the answer m to question q with the simulated internet. validates says whether the resolver
// validates signatures. A validating resolver must answer SERVFAIL if the security status is bogus, and set AD exactly
// if it is secure. Another resolver must never set AD, and may give any answer to a question with the status bogus.
func (n *internet) checkAnswer(q question, m *dns.Msg, validates bool) verdict {
	status := n.securityStatusOf(q)
	switch {
	case status == bogus && !validates:
		return correct
	case status == bogus && m.Rcode == dns.RcodeServerFailure:
		return correct
	case status == bogus:
		return answeredBogus
	case !n.isCorrectAnswer(q, m):
		return incorrect
	case m.Truncated || status == undetermined && validates:
		return correct
	case m.AuthenticatedData != (status == secure && validates):
		return wrongAD
	}
	return correct
}

// isCorrectAnswer reports whether m answers q with the records of the simulated internet. A truncated one counts as correct.
func (n *internet) isCorrectAnswer(q question, m *dns.Msg) bool {
	want, aliases := n.correctAddresses(q)
	if z := n.findZone(q.name); z.hosts[q.name] == nil {
		return m.Rcode == dns.RcodeNameError
	}
	if m.Rcode != dns.RcodeSuccess {
		return false
	}
	if m.Truncated {
		return true
	}
	if len(m.Answer) != len(want)+aliases {
		return false
	}
	got := make(map[netip.Addr]bool)
	for _, rr := range m.Answer {
		var ip []byte
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A.To4()
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(ip); ok && rr.Header().Rrtype == q.qtype {
			got[a] = true
		}
	}
	return len(got) == len(want) && !slices.ContainsFunc(want, func(a netip.Addr) bool { return !got[a] })
}
