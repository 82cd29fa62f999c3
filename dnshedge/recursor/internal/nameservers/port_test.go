package nameservers

import (
	"math"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDialRandomPortUsesWholeRange requires RFC 5452 §9.2. A random port is below 16,384 in one case of four. A port
// that Linux selects is 32,768 or higher.
func TestDialRandomPortUsesWholeRange(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:53", "[::1]:53"} {
		to := netip.MustParseAddrPort(addr)
		least, most, low := math.MaxInt, 0, 0
		const n = 400
		for range n {
			c, err := dialRandomPort(to)
			if to.Addr().Is6() && err != nil {
				t.Skipf("no IPv6: %v", err)
			}
			require.NoError(t, err)
			port := c.LocalAddr().(*net.UDPAddr).Port
			assert.Equal(t, to, c.RemoteAddr().(*net.UDPAddr).AddrPort())
			require.NoError(t, c.Close())
			least, most = min(least, port), max(most, port)
			if port < 1<<14 {
				low++
			}
		}
		assert.GreaterOrEqual(t, least, firstPort)
		assert.Greater(t, most, 60000)
		assert.InDelta(t, n*(1<<14-firstPort)/(1<<16-firstPort), low, 60, "six standard deviations")
	}
}
