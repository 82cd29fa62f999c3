package names

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The examples of RFC 6724 §10.2, without rules 3, 4, 7 and 9, and addresses without a route.
func TestDestinationOrderFollowsRFC6724(t *testing.T) {
	for _, row := range [][2]string{ // a destination, and its source, before another
		{"2001:db8:1::1 2001:db8:1::2", "198.51.100.121 169.254.13.78"},     // rule 2
		{"198.51.100.121 198.51.100.117", "2001:db8:1::1 fe80::1"},          // rule 2
		{"2001:db8:1::1 2001:db8:1::2", "10.1.2.3 10.1.2.4"},                // rule 6
		{"fe80::1 fe80::2", "2001:db8:1::1 2001:db8:1::2"},                  // rule 8
		{"2001:db8:1::1 2001:db8:1::2", "2002:c633:6401::1 2002:c633:64::"}, // rule 6
		{"198.51.100.121 10.1.2.4", "2001:db8::1 fd00::1"},                  // rule 5
		{"198.51.100.121 10.1.2.4", "2002::1 2001:db8::1"},                  // rule 5
		{"198.51.100.121 10.1.2.4", "2001::1 2001::2"},                      // rule 6, Teredo
		{"198.51.100.121 10.1.2.4", "fd00::1 fd00::2"},                      // rule 6
		{"198.51.100.121 10.1.2.4", "2001:db8::1 -"},                        // rule 1
		{"2001:db8::1 2001:db8::2", "198.51.100.121 -"},                     // rule 1
		{"::1 ::1", "127.0.0.1 127.0.0.1"},                                  // rule 6
	} {
		a, b := parseDestination(row[0]), parseDestination(row[1])
		assert.Negative(t, a.compareTo(b), "%v", row)
		assert.Positive(t, b.compareTo(a), "%v", row)
		assert.Zero(t, a.compareTo(a), "%v", row)
	}
}

func parseDestination(s string) destination {
	addr, source := s[:slices.Index([]byte(s), ' ')], s[slices.Index([]byte(s), ' ')+1:]
	d := destination{addr: netip.MustParseAddr(addr)}
	d.source, _ = netip.ParseAddr(source)
	return d
}

func TestSystemSourceReturnsSourceAddress(t *testing.T) {
	source, err := systemSourceAddress(netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("127.0.0.1"), source)
	source, _ = systemSourceAddress(netip.MustParseAddr("fe80::1%nowhere"))
	assert.False(t, source.IsValid())
	other := &Names{Dialer: struct{ *net.Dialer }{}}
	ip := netip.MustParseAddr("192.0.2.1")
	source, err = other.sourceOf(ip)
	require.NoError(t, err)
	assert.Equal(t, ip, source, "of a Dialer that may be a proxy")
}
