package dnshedge

import "github.com/miekg/dns"

// result is what a response amounts to.
type result int

const (
	positive result = iota
	nodata          // the name exists, but not with this type
	nxdomain        // the name does not exist
	denied          // a failure that is meant: DNSSEC or a policy says no
	failed          // the server could not or would not answer; another may
)

// outcome tells what a response amounts to. What is below failed is final.
func outcome(a *answer, q *query) result {
	m := a.msg
	switch m.Rcode {
	case dns.RcodeSuccess:
		for _, rr := range m.Answer {
			if t := rr.Header().Rrtype; t == q.typ || q.typ == dns.TypeANY {
				return positive
			}
		}
		if len(m.Answer) == 0 && len(m.Ns) == 0 && !m.RecursionAvailable && !m.Authoritative {
			return failed // lame: knows nothing and will not ask
		}
		if len(m.Answer) == 0 && onlyReferral(m) {
			return failed
		}
		return nodata
	case dns.RcodeNameError:
		return nxdomain
	case dns.RcodeYXDomain, dns.RcodeYXRrset, dns.RcodeNXRrset, dns.RcodeNotAuth, dns.RcodeNotZone:
		return denied
	case dns.RcodeServerFailure:
		// Another server that does not validate or filter would answer, and so
		// hedging would undo what this one is there for.
		for _, e := range a.ede {
			if final(e.code) {
				return denied
			}
		}
	}
	return failed
}

// onlyReferral reports whether a server that does not recurse points elsewhere.
func onlyReferral(m *dns.Msg) bool {
	if m.RecursionAvailable || m.Authoritative {
		return false
	}
	for _, rr := range m.Ns {
		if rr.Header().Rrtype != dns.TypeNS {
			return false
		}
	}
	return true
}

// final reports whether an extended error (RFC 8914) says that a failure is
// meant: DNSSEC (1, 2, 5 to 12, 27) or a policy (15 to 17).
func final(code uint16) bool {
	switch {
	case code == 1, code == 2, 5 <= code && code <= 12, 15 <= code && code <= 17, code == 27:
		return true
	}
	return false
}
