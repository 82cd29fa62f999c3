package nameservers

import (
	"net/netip"
	"time"
)

const (
	familyBackoffThreshold = 8           // consecutive unanswered zones after which the other address family is preferred
	familyBackoff          = time.Minute // time for which the other address family is preferred
)

// familyHealth counts missing answers over one address family, IPv4 or IPv6, in order to detect that this machine has
// no connectivity over the family. Pool.mu guards it.
type familyHealth struct {
	hasAnswered     bool          // a server has answered over the family
	unansweredCount int           // number of consecutive unanswered zones
	lastZone        string        // name of the unanswered zone that was counted last
	avoidUntil      time.Duration // the other family is preferred until this time, since Pool.epoch
}

// recordUnansweredZone counts a zone whose server did not answer over this address family. After familyBackoffThreshold
// zones, servers of the other family are preferred for familyBackoff. The same zone is not counted twice in a row.
//
// hasAnsweredZone is true if the server has answered queries about the zone before. One zone may list many unresponsive
// servers. Once any server has answered over the family, a zone therefore counts only if hasAnsweredZone is true.
func (y *familyHealth) recordUnansweredZone(now time.Duration, zone string, hasAnsweredZone bool) {
	if y.hasAnswered && !hasAnsweredZone || zone == y.lastZone {
		return
	}
	y.lastZone = zone
	if y.unansweredCount++; y.unansweredCount >= familyBackoffThreshold && now >= y.avoidUntil {
		y.avoidUntil = now + familyBackoff
	}
}

// familyIndex returns the index of an address in Pool.families: 0 for IPv4, and 1 for IPv6.
func familyIndex(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return 0
	}
	return 1
}

// isAllowedAddress reports whether queries may be sent to the server address addr. The address must be valid and its
// family enabled. Private addresses are allowed only if privateOK or c.PrivateOK is true.
func (c *Config) isAllowedAddress(addr netip.AddrPort, privateOK bool) bool {
	a := addr.Addr()
	switch {
	case !a.IsValid() || addr.Port() == 0:
		return false
	case a.Is4() && c.NoIPv4 || a.Is6() && c.NoIPv6:
		return false
	}
	return privateOK || c.PrivateOK || !isPrivateAddress(a)
}

// isPrivateAddress reports whether an address is not a public unicast address: it is multicast, or is meaningful only
// in one network or on one machine. An address with an embedded IPv4 address (NAT64, 6to4) is private if the IPv4
// address is private.
//
// The address must not be an IPv4-mapped IPv6 address.
func isPrivateAddress(a netip.Addr) bool {
	for _, p := range specialNetworks {
		if p.Contains(a) {
			return true
		}
	}
	switch {
	case a.Is4():
	case nat64.Contains(a):
		return isPrivateAddress(netip.AddrFrom4([4]byte(a.AsSlice()[12:])))
	case sixToFour.Contains(a):
		return isPrivateAddress(netip.AddrFrom4([4]byte(a.AsSlice()[2:6])))
	}
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
}

// specialNetworks are special-purpose networks (RFC 6890) that the methods of netip.Addr do not recognize.
var specialNetworks = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // RFC 6598
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), // RFC 8215
	netip.MustParsePrefix("fec0::/10"),      // RFC 3879
}

// nat64 and sixToFour are networks whose addresses embed an IPv4 address.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056
)
