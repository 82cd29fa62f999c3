package system

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
)

// An adapter holds the properties of a Windows network adapter (IP_ADAPTER_ADDRESSES) that determine which DNS servers
// are used.
type adapter struct {
	Index      uint32 // zone of the adapter's link-local addresses
	Up         bool
	HasGateway bool
	Metric     uint32 // the adapter with the lowest metric is asked first
	Servers    []netip.Addr
}

// siteLocalNetwork has the servers that Windows assumes for adapters without servers. RFC 3879 has deprecated it.
var siteLocalNetwork = netip.MustParsePrefix("fec0::/10")

// adapterServers returns the DNS servers of the adapters in the order in which Windows asks them, without duplicates.
// It omits adapters that are down, and site-local server addresses (siteLocalNetwork). Adapters without a gateway come
// last, because they are tunnels or isolated networks of virtual machines.
func adapterServers(all []adapter) (servers []netip.Addr) {
	all = slices.DeleteFunc(slices.Clone(all), func(a adapter) bool { return !a.Up })
	slices.SortStableFunc(all, func(a, b adapter) int {
		if a.HasGateway != b.HasGateway {
			if a.HasGateway {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Metric, b.Metric)
	})
	for _, a := range all {
		for _, ip := range a.Servers {
			if siteLocalNetwork.Contains(ip) {
				continue
			}
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(strconv.Itoa(int(a.Index)))
			}
			if !slices.Contains(servers, ip) {
				servers = append(servers, ip)
			}
		}
	}
	return servers
}
