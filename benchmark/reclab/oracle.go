package reclab

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// grade is what is to be said of an answer.
type grade int

const (
	right     grade = iota
	wrong           // or no answer
	believed        // a name that is bogus has an answer
	misjudged       // AD is set where the chain is not signed, or is not set where it is
)

// grade compares an answer with what the world has. Those who validate have to answer SERVFAIL where no signature is right, and set AD
// exactly where all are; others never set it, and what they answer about bogus names is of no account.
func (w *world) grade(q question, m *dns.Msg, validates bool) grade {
	status := w.status(q)
	switch {
	case status == bogus && !validates:
		return right
	case status == bogus && m.Rcode == dns.RcodeServerFailure:
		return right
	case status == bogus:
		return believed
	case !w.right(q, m):
		return wrong
	case m.Truncated || status == unclear && validates:
		return right
	case m.AuthenticatedData != (status == secure && validates):
		return misjudged
	}
	return right
}

// right reports whether a response answers a question as the world does. One that is cut is
// right: over TCP there would be more.
func (w *world) right(q question, m *dns.Msg) bool {
	want, aliases := w.addresses(q)
	if z := w.zoneOf(q.name); z.hosts[q.name] == nil {
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
