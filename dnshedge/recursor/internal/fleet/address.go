package fleet

import (
	"net/netip"
	"time"
)

const (
	familySilence = 8           // zones, one after the other, without an answer, after which a family rests
	familyRest    = time.Minute //
)

// family is what is known of IPv4 or IPv6. It is guarded by Fleet.mu.
type family struct {
	works  bool          // an answer has come
	silent int           // zones in a row whose servers have not answered
	zone   string        // the last of them
	until  time.Duration // when it is asked first again, since Fleet.epoch
}

// miss takes that no answer has come from a server of a zone. A zone may have many servers that are silent, and
// once the family works, those that never answered for the zone, as they are known to have done, say nothing of it.
func (y *family) miss(now time.Duration, zone string, known bool) {
	if y.works && !known || zone == y.zone {
		return
	}
	y.zone = zone
	if y.silent++; y.silent >= familySilence && now >= y.until {
		y.until = now + familyRest
	}
}

// familyOf returns the index of an address's family.
func familyOf(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return 0
	}
	return 1
}

// allows reports whether a server with that address may be asked.
func (c *Config) allows(at netip.AddrPort, anywhere bool) bool {
	a := at.Addr()
	switch {
	case !a.IsValid() || at.Port() == 0:
		return false
	case a.Is4() && c.NoIPv4 || a.Is6() && c.NoIPv6:
		return false
	}
	return anywhere || c.PrivateOK || !private(a)
}

// private reports whether an address, which is not an IPv4 address in IPv6, means something
// in one network or on one machine only, or is none of one machine.
func private(a netip.Addr) bool {
	for _, p := range local {
		if p.Contains(a) {
			return true
		}
	}
	switch {
	case a.Is4():
	case nat64.Contains(a):
		return private(netip.AddrFrom4([4]byte(a.AsSlice()[12:])))
	case sixToFour.Contains(a):
		return private(netip.AddrFrom4([4]byte(a.AsSlice()[2:6])))
	}
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
}

// local are networks, besides those that package netip knows, whose addresses mean nothing elsewhere.
var local = [...]netip.Prefix{
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
