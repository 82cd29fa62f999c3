package nameservers

import (
	"net/netip"
	"time"
)

const (
	maxSilentZones = 8           // zones, one after the other, without an answer, after which a family rests
	familyBackoff  = time.Minute //
)

// familyHealth is what is known of IPv4 or IPv6. It is guarded by Fleet.mu.
type familyHealth struct {
	hasAnswered bool          // an answer has come
	silentZones int           // zones in a row whose servers have not answered
	lastZone    string        // the last of them
	avoidUntil  time.Duration // when it is asked first again, since Fleet.epoch
}

// recordMiss takes that no answer has come from a server of a zone. A zone may have many servers that are silent, and
// once the family works, those that never answered for the zone, as they are known to have done, say nothing of it.
func (y *familyHealth) recordMiss(now time.Duration, zone string, known bool) {
	if y.hasAnswered && !known || zone == y.lastZone {
		return
	}
	y.lastZone = zone
	if y.silentZones++; y.silentZones >= maxSilentZones && now >= y.avoidUntil {
		y.avoidUntil = now + familyBackoff
	}
}

// familyIndex returns the index of an address's family.
func familyIndex(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return 0
	}
	return 1
}

// isAllowedAddress reports whether a server with that address may be asked.
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

// isPrivateAddress reports whether an address, which is not an IPv4 address in IPv6, means something
// in one network or on one machine only, or is none of one machine.
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

// local are networks, besides those that package netip knows, whose addresses mean nothing elsewhere.
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
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052 §2.1
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056
)
