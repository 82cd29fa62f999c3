package dnshedge

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// RebindFilter keeps private addresses out of what servers answer. Without it, whoever
// owns a public name can point it at a host of the network that the program is in, and
// a browser that has a page from that name may then talk to that host (DNS rebinding).
//
// Removed are A and AAAA records with an address that is private, loopback, link-local,
// site-local, unspecified, shared (100.64.0.0/10), or IPv6 for one of those (RFC 4291 §2.5.5, RFC
// 6052, RFC 8215), and HTTPS and SVCB records with a hint to one. An answer from which a record was
// removed has the extended error 15, Blocked (RFC 8914), and is not authentic any more.
// Special-use names, the hosts file, what Client.Routes have others answer and names in
// domains for which the system has servers of their own are not filtered, nor is what another
// Client has put into the Cache. Import takes no answers that were saved without the filter.
//
// The zero value filters all names. Lists of addresses that are asked by DNS, as those of
// spammers, answer with loopback addresses: allow their domains.
type RebindFilter struct {
	// Allow lists domains whose names, and all names below them, may have private
	// addresses. What counts is the name that is asked for, and not one that it is an
	// alias of.
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

// filterAnswer removes forbidden records from a, which is not yet shared.
func (f *RebindFilter) filterAnswer(q *wire.Query, a *wire.Answer) error {
	return a.Edit(func(m *dns.Msg) bool {
		if !slices.ContainsFunc(m.Answer, isPrivateRecord) && !slices.ContainsFunc(m.Extra, isPrivateRecord) || f.allowsRecord(q.Text()) {
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

func (f *RebindFilter) allowsRecord(name string) bool {
	return slices.ContainsFunc(f.Allow, func(domain string) bool { return dns.IsSubDomain(dns.Fqdn(domain), name) })
}

// isPrivateRecord reports whether a record leads to a private address. So does one whose
// addresses cannot be read.
func isPrivateRecord(rr dns.RR) bool {
	switch rr := rr.(type) {
	case *dns.A:
		ip, ok := netip.AddrFromSlice(rr.A)
		return !ok || isPrivateAddress(ip)
	case *dns.AAAA:
		ip, ok := netip.AddrFromSlice(rr.AAAA)
		return !ok || isPrivateAddress(ip)
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
			if ip, ok := netip.AddrFromSlice(b); !ok || isPrivateAddress(ip) {
				return true
			}
		}
	}
	return false
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")      // RFC 1122 §3.2.1.3
	shared      = netip.MustParsePrefix("100.64.0.0/10")  // RFC 6598
	compatible  = netip.MustParsePrefix("::/96")          // RFC 4291 §2.5.5.1
	translated  = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052 §2.1
	within      = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215: translated within a network
	site        = netip.MustParsePrefix("fec0::/10")      // RFC 3879
)

// isPrivateAddress reports whether an address means a host of a private network.
func isPrivateAddress(ip netip.Addr) bool {
	ip = ip.Unmap()
	if compatible.Contains(ip) || translated.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:])) // ::1 becomes an address of this network
	}
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || thisNetwork.Contains(ip) || shared.Contains(ip) ||
		within.Contains(ip) || site.Contains(ip)
}
