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

// RebindFilter removes private addresses from the answers of servers. It prevents DNS rebinding: without it, the owner
// of a public name can point the name at a host of the program's network. Then a browser that shows a page from that
// name may be used to access the host.
//
// The filter removes A and AAAA records with private, loopback, link-local, site-local or unspecified (0.0.0.0/8 and
// ::) addresses. It also removes 100.64.0.0/10 (RFC 6598) and 192.0.0.0/24 (RFC 6890), except its anycast addresses and
// those of ipv4only.arpa. IPv6 addresses that embed one of these (RFC 3056, RFC 4291 §2.5.5, RFC 6052) or are in
// 64:ff9b:1::/48 (RFC 8215) are removed as well.
//
// The filter removes HTTPS and SVCB records with one of these addresses as a hint. A filtered answer has the extended
// error 15, Blocked (RFC 8914), and no AD bit.
//
// The filter is not applied to special-use names, the hosts file, names in Client.Routes, and names in domains for
// which the system has separate servers. It is also not applied to an answer that another Client has stored in the
// shared Cache.
//
// Where the filter applies, Client.Import skips answers that a Client with another RebindFilter, or without one, has
// received.
//
// The zero value has no exceptions. Block lists that are queried by DNS, for example lists of spammers, answer with
// loopback addresses, so Allow must contain their domains.
type RebindFilter struct {
	// Allow lists domains whose names, and all names below them, may have private addresses. The name in the question
	// decides, and not the target of an alias.
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

// filterAnswer removes records with private addresses from the answer a to q, unless Allow contains q's name or a
// domain above it. The caller must not have shared a with other goroutines. filterAnswer returns an error if the
// message cannot be parsed, or packed again. Then a is unchanged.
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

// isPrivateRecord reports whether a record contains an address that RebindFilter removes. The address is the data of an
// A or AAAA record, or a hint in an HTTPS or SVCB record. The result is also true if a record of one of these types
// cannot be parsed.
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
