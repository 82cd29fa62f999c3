package names

import (
	"cmp"
	"net"
	"net/netip"
	"syscall"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
)

// A destination is an address to connect to, and the source address that the system uses for it (RFC 6724 §6).
type destination struct {
	addr   netip.Addr
	source netip.Addr // not valid: there is no route
}

// policies is the default policy table (RFC 6724 §2.1), with the longest prefixes first.
var policies = []struct {
	prefix            netip.Prefix
	precedence, label int
}{
	{netip.MustParsePrefix("::1/128"), 50, 0},
	{netip.MustParsePrefix("::/96"), 1, 3},
	{netip.MustParsePrefix("2001::/32"), 5, 5},
	{netip.MustParsePrefix("2002::/16"), 30, 2},
	{netip.MustParsePrefix("3ffe::/16"), 1, 12},
	{netip.MustParsePrefix("fec0::/10"), 1, 11},
	{netip.MustParsePrefix("fc00::/7"), 3, 13},
	{netip.MustParsePrefix("0.0.0.0/0"), 35, 4}, // ::ffff:0:0/96
	{netip.MustParsePrefix("::/0"), 40, 1},
}

// lookupPolicy returns the precedence and label of an address in the default policy table of RFC 6724 §2.1. A higher
// precedence is preferred. Labels are only compared for equality.
func lookupPolicy(ip netip.Addr) (precedence, label int) {
	for _, p := range policies {
		if p.prefix.Contains(ip.WithZone("")) {
			return p.precedence, p.label
		}
	}
	return 0, -1
}

// scopeOf returns the scope of an address, as the number that multicast addresses use for that scope (RFC 6724 §3.1,
// §3.2).
func scopeOf(ip netip.Addr) int {
	const linkLocal, siteLocal, global = 0x2, 0x5, 0xe
	switch b := ip.As16(); {
	case ip.IsLoopback() || ip.IsLinkLocalUnicast():
		return linkLocal
	case ip.Is6() && ip.IsMulticast():
		return int(b[1] & 0xf)
	case ip.Is6() && b[0] == 0xfe && b[1]&0xc0 == 0xc0:
		return siteLocal
	}
	return global
}

// compareTo returns a negative number if a is preferred to b as the destination of a connection, a positive number if b
// is preferred, and otherwise 0. It applies rules 1, 2, 5, 6 and 8 of RFC 6724 §6.
func (a destination) compareTo(b destination) int {
	if c := compareBools(a.source.IsValid(), b.source.IsValid()); c != 0 || !a.source.IsValid() {
		return c
	}
	aPrecedence, aLabel := lookupPolicy(a.addr)
	bPrecedence, bLabel := lookupPolicy(b.addr)
	_, aSource := lookupPolicy(a.source)
	_, bSource := lookupPolicy(b.source)
	// Rules 3, 4 and 7 need data that package net lacks. Rule 9 would always prefer the same address of a family.
	return cmp.Or(
		compareBools(scopeOf(a.addr) == scopeOf(a.source), scopeOf(b.addr) == scopeOf(b.source)),
		compareBools(aLabel == aSource, bLabel == bSource),
		cmp.Compare(bPrecedence, aPrecedence),
		cmp.Compare(scopeOf(a.addr), scopeOf(b.addr)),
	)
}

// compareBools returns -1 if only a is true, 1 if only b is true, and otherwise 0.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// systemSourceAddress returns the local address from which the system would send packets to ip, or the zero Addr if
// there is no route. It sends nothing. An error means that the address cannot be determined now, for example because
// too many files are open.
func systemSourceAddress(ip netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 53)))
	if err != nil {
		// there is no route to the address, or the system lacks its address family
		if socketerror.IsAny(err, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT) {
			err = nil
		}
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// sourceOf returns the local address of connections to ip, by which RFC 6724 orders addresses, or the zero Addr if
// there is no route. If the Dialer is not a *net.Dialer, the result is ip itself, so that ip counts as reachable.
func (n *Names) sourceOf(ip netip.Addr) (netip.Addr, error) {
	if _, plain := n.dialer().(*net.Dialer); !plain { // such as a proxy, which may reach other networks
		return ip, nil
	}
	return systemSourceAddress(ip)
}

// sourcesOf returns the source address of connections to each address in addrs, as a map. RFC 6724 orders addresses by
// it. An address whose source cannot be determined now is missing. The caller must not hold mu, because sourcesOf makes
// system calls.
func (n *Names) sourcesOf(addrs []netip.Addr) map[netip.Addr]netip.Addr {
	sources := make(map[netip.Addr]netip.Addr, len(addrs))
	for _, ip := range addrs {
		if source, err := n.sourceOf(ip); err == nil {
			sources[ip] = source
		}
	}
	return sources
}

// setSources stores, for each of the host's addresses in addrs, the source address of connections, from the map
// sources. If sources lacks an address, its stored source remains, and is determined again later. The caller must hold
// mu.
func (h *host) setSources(addrs []netip.Addr, sources map[netip.Addr]netip.Addr) {
	for _, ip := range addrs {
		a := h.addrs[ip]
		if a == nil {
			continue
		}
		source, known := sources[ip]
		if a.isSourceUnsure = !known; known {
			a.source = source
		}
		h.hasUnsureSource = h.hasUnsureSource || a.isSourceUnsure
	}
}

// determineSources tries again to determine the source addresses of connections to the host's addresses that have the
// field isSourceUnsure set, and stores the results. The caller must hold mu, which is unlocked during the system calls.
func (h *host) determineSources() {
	h.hasUnsureSource = false
	var unsure []netip.Addr
	for ip, a := range h.addrs {
		if a.isSourceUnsure {
			unsure = append(unsure, ip)
		}
	}
	h.n.mu.Unlock()
	sources := h.n.sourcesOf(unsure)
	h.n.mu.Lock()
	h.setSources(unsure, sources)
}
