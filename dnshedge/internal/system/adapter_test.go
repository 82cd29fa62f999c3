package system_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/system"
)

// TestAdapterServersFollowWindowsOrder has adapters as laptops show them.
func TestAdapterServersFollowWindowsOrder(t *testing.T) {
	adapter := func(index uint32, up, gateway bool, metric uint32, servers string) system.Adapter {
		a := system.Adapter{Index: index, Up: up, HasGateway: gateway, Metric: metric}
		for _, s := range strings.Fields(servers) {
			a.Servers = append(a.Servers, netip.MustParseAddr(s))
		}
		return a
	}
	wifi := adapter(12, true, true, 35, "192.168.1.1 fe80::1")
	cable := adapter(7, true, true, 25, "192.0.2.53 2001:db8::53")
	unplugged := adapter(5, false, false, 5, "10.9.9.9")
	virtual := adapter(40, true, false, 15, "fec0:0:0:ffff::1 fec0:0:0:ffff::2 fec0:0:0:ffff::3")
	tunnel := adapter(50, true, false, 5, "10.0.0.53")
	for want, all := range map[string][]system.Adapter{
		"":                       nil,
		"192.168.1.1 fe80::1%12": {wifi, unplugged, virtual},
		"192.0.2.53 2001:db8::53 192.168.1.1 fe80::1%12":           {wifi, cable},
		"192.168.1.1 fe80::1%12 10.0.0.53":                         {tunnel, wifi},
		"10.0.0.53":                                                {virtual, tunnel},
		"192.0.2.53 2001:db8::53 192.168.1.1 fe80::1%12 10.0.0.53": {tunnel, wifi, virtual, cable, unplugged, cable},
	} {
		var got []string
		for _, ip := range system.AdapterServers(all) {
			got = append(got, ip.String())
		}
		assert.Equal(t, want, strings.Join(got, " "))
	}
}
