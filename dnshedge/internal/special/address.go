package special

import (
	"net/netip"
	"slices"
)

// Networks whose addresses embed an IPv4 address.
var (
	nat64Network = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052 §2.1: at the end
	network6to4  = netip.MustParsePrefix("2002::/16")    // RFC 3056 §2: after the prefix
)

// EmbeddedIPv4 returns the IPv4 address within ip if ip is an IPv4-mapped, NAT64 (64:ff9b::/96) or 6to4 address.
// Otherwise, it returns ip.
func EmbeddedIPv4(ip netip.Addr) netip.Addr {
	ip = ip.Unmap()
	b := ip.As16()
	switch {
	case nat64Network.Contains(ip):
		return netip.AddrFrom4([4]byte(b[12:]))
	case network6to4.Contains(ip):
		return netip.AddrFrom4([4]byte(b[2:]))
	}
	return ip
}

// IPv4CompatibleNetwork has the addresses ::a.b.c.d (RFC 4291 §2.5.5.1), with the unspecified and the loopback address.
var IPv4CompatibleNetwork = netip.MustParsePrefix("::/96")

// ProtocolNetwork is assigned to protocols (RFC 6890). A cloud has its metadata service at 192.0.0.192.
var ProtocolNetwork = netip.MustParsePrefix("192.0.0.0/24")

// publicProtocolAddresses are the addresses of ProtocolNetwork that are no private hosts: anycast addresses (RFC 7723,
// RFC 8155), and those of ipv4only.arpa (RFC 7050).
var publicProtocolAddresses = [...]netip.Addr{
	netip.MustParseAddr("192.0.0.9"), netip.MustParseAddr("192.0.0.10"), netip.MustParseAddr("192.0.0.170"), netip.MustParseAddr("192.0.0.171"),
}

// privateNetworks are private networks that the methods of netip.Addr do not recognize.
var privateNetworks = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // RFC 1122 §3.2.1.3: this network
	netip.MustParsePrefix("100.64.0.0/10"),  // RFC 6598: shared by the customers of a provider
	netip.MustParsePrefix("64:ff9b:1::/48"), // RFC 8215: translated within a network
	netip.MustParsePrefix("fec0::/10"),      // RFC 3879: site-local
}

// IsPrivateAddress reports whether ip belongs to a private network or to this machine. If ip embeds an IPv4 address
// (IPv4-mapped, IPv4-compatible, NAT64 or 6to4), the result is that for the IPv4 address.
func IsPrivateAddress(ip netip.Addr) bool {
	ip = EmbeddedIPv4(ip)
	if IPv4CompatibleNetwork.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:])) // ::1 becomes 0.0.0.1
	}
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() ||
		slices.ContainsFunc(privateNetworks[:], func(p netip.Prefix) bool { return p.Contains(ip) }) ||
		ProtocolNetwork.Contains(ip) && !slices.Contains(publicProtocolAddresses[:], ip)
}
