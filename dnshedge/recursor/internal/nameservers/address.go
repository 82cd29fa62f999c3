package nameservers

import (
	"net/netip"
	"time"
)

const (
	familyBackoffThreshold = 8           // consecutive zones without an answer before an address family is avoided
	familyBackoff          = time.Minute // how long the other family is preferred
)

// familyHealth is the observed health of IPv4 or IPv6. Pool.mu guards it.
type familyHealth struct {
	hasAnswered     bool          // an answer has come over the family
	unansweredCount int           // consecutive zones whose servers have not answered
	lastZone        string        // the last of these zones
	avoidUntil      time.Duration // until when the other family is asked first, since Pool.epoch
}

// recordUnansweredZone counts a missing answer from a server of a zone. Once the family works, only servers that have answered for
// the zone count (known), because a zone may have many silent servers.
func (y *familyHealth) recordUnansweredZone(now time.Duration, zone string, known bool) {
	if y.hasAnswered && !known || zone == y.lastZone {
		return
	}
	y.lastZone = zone
	if y.unansweredCount++; y.unansweredCount >= familyBackoffThreshold && now >= y.avoidUntil {
		y.avoidUntil = now + familyBackoff
	}
}

// familyIndex returns the index of an address's family in Pool.families.
func familyIndex(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return 0
	}
	return 1
}

// isAllowedAddress reports whether a server at this address may be asked. anywhere allows private addresses.
func (c *Config) isAllowedAddress(at netip.AddrPort, anywhere bool) bool {
	a := at.Addr()
	switch {
	case !a.IsValid() || at.Port() == 0:
		return false
	case a.Is4() && c.NoIPv4 || a.Is6() && c.NoIPv6:
		return false
	}
	return anywhere || c.PrivateOK || !isPrivateAddress(a)
}

// isPrivateAddress reports whether an address is meaningful only in one network or on one machine, or is not unicast. It
// must not be an IPv4-mapped IPv6 address.
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

// specialNetworks are networks with local meaning that package netip does not know.
var specialNetworks = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // RFC 6598
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), // RFC 8215
	netip.MustParsePrefix("fec0::/10"),      // RFC 3879
}

// nat64 and sixToFour are networks whose addresses have an IPv4 address in them.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // nat64 and sixToFour are networks whose addresses embed an IPv4 address.
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056
)
