package system

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
)

// adapter is a network adapter as Windows describes it, in IP_ADAPTER_ADDRESSES.
type adapter struct {
	Index      uint32 // of the adapter, which is the zone of its link-local addresses
	Up         bool
	HasGateway bool   // has one
	Metric     uint32 // the adapter with the least is asked first
	Servers    []netip.Addr
}

// siteLocalNetwork are the servers that Windows assumes on adapters without any. RFC 3879 has
// deprecated them.
var siteLocalNetwork = netip.MustParsePrefix("fec0::/10")

// adapterServers returns the DNS servers of a machine in the order in which Windows asks them. It omits adapters that
// are down. Adapters without a gateway come last, because they are tunnels, or networks of virtual machines that lead
// nowhere.
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
