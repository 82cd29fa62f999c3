package dnshedge

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// RebindFilter removes private addresses from the answers of servers. It prevents DNS rebinding, an attack in which a
// public name points at a host of the program's network. The zero value has no exceptions.
//
//   - It removes A and AAAA records with private, loopback, link-local, site-local or unspecified (0.0.0.0/8 and ::)
//     addresses.
//   - It also removes addresses in 100.64.0.0/10 (RFC 6598), 64:ff9b:1::/48 (RFC 8215), and 192.0.0.0/24 (RFC 6890)
//     except its anycast addresses and those of ipv4only.arpa.
//   - It removes IPv6 addresses that embed one of these addresses (RFC 3056, RFC 4291 §2.5.5, RFC 6052), and HTTPS and
//     SVCB records with one of them as a hint.
//   - A filtered answer has the extended error 15, Blocked (RFC 8914), and no AD bit.
//   - It is not applied to special-use names, the hosts file, names in Client.Routes, domains for which the system has
//     separate servers, and answers of another Client in a shared Cache.
//   - Client.Import skips answers that a Client with a different RebindFilter, or without one, has received.
type RebindFilter struct {
	// Allow lists domains whose names, and all names below them, may have private addresses. The name in the question
	// decides, and not the target of an alias. Block lists that are queried by DNS answer with loopback addresses, so
	// Allow must contain their domains.
	Allow []string
}

const edeBlocked = 15

func (f *RebindFilter) validate() error {
	for _, name := range f.Allow {
		if _, ok := dns.IsDomainName(name); !ok || name == "" {
			return fmt.Errorf("dnshedge: RebindFilter.Allow has %q; want domain names", name)
		}
	}
	return nil
}

// filterAnswer removes records with private addresses from the answer a to q, except if Allow contains q's name or a
// domain above it. No other goroutine may use a. If a cannot be parsed or packed, it is unchanged, and the result is an
// error.
func (f *RebindFilter) filterAnswer(q *wire.Query, a *wire.Answer) error {
	isAllowed := func(domain string) bool { return dns.IsSubDomain(dns.Fqdn(domain), q.PresentationName()) }
	return a.Edit(func(m *dns.Msg) bool {
		if !slices.ContainsFunc(m.Answer, isPrivateRecord) && !slices.ContainsFunc(m.Extra, isPrivateRecord) || slices.ContainsFunc(f.Allow, isAllowed) {
			return false
		}
		m.Answer, m.Extra = slices.DeleteFunc(m.Answer, isPrivateRecord), slices.DeleteFunc(m.Extra, isPrivateRecord)
		m.AuthenticatedData = false
		a.EDE = append(a.EDE, wire.EDE{Code: edeBlocked, Text: "private address"})
		if a.Outcome == wire.Positive && !slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == q.Type }) {
			a.Outcome = wire.NoData
		}
		return true
	})
}

// isPrivateRecord reports whether RebindFilter removes a record: an A or AAAA record with a private address, an HTTPS
// or SVCB record with a private address as a hint, or a record of one of these types that cannot be parsed.
func isPrivateRecord(rr dns.RR) bool {
	switch rr := rr.(type) {
	case *dns.A:
		ip, ok := netip.AddrFromSlice(rr.A)
		return !ok || special.IsPrivateAddress(ip)
	case *dns.AAAA:
		ip, ok := netip.AddrFromSlice(rr.AAAA)
		return !ok || special.IsPrivateAddress(ip)
	case *dns.HTTPS:
		return hasPrivateHint(&rr.SVCB)
	case *dns.SVCB:
		return hasPrivateHint(rr)
	case *dns.RFC3597:
		switch rr.Hdr.Rrtype {
		case dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
			return true
		}
	}
	return false
}

func hasPrivateHint(rr *dns.SVCB) bool {
	for _, kv := range rr.Value {
		var hints []net.IP
		switch kv := kv.(type) {
		case *dns.SVCBIPv4Hint:
			hints = kv.Hint
		case *dns.SVCBIPv6Hint:
			hints = kv.Hint
		}
		for _, b := range hints {
			if ip, ok := netip.AddrFromSlice(b); !ok || special.IsPrivateAddress(ip) {
				return true
			}
		}
	}
	return false
}
