package system

import (
	"cmp"
	"errors"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// systemConf is empty, because Windows has no resolv.conf.
const systemConf = ""

// askSystem returns the DNS servers of this machine's adapters.
var askSystem = func() (found Configuration, err error) {
	const flags = windows.GAA_FLAG_INCLUDE_GATEWAYS | windows.GAA_FLAG_SKIP_UNICAST | windows.GAA_FLAG_SKIP_ANYCAST |
		windows.GAA_FLAG_SKIP_MULTICAST | windows.GAA_FLAG_SKIP_FRIENDLY_NAME
	size := uint32(15000) // the initial size that Microsoft recommends
	for {
		b := make([]byte, size)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&b[0]))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, flags, 0, first, &size)
		if err == nil {
			for _, ip := range adapterServers(listAdapters(first)) {
				found.Servers = append(found.Servers, netip.AddrPortFrom(ip, 53))
			}
			return found, nil
		}
		if !errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) || size <= uint32(len(b)) {
			return found, err
		}
	}
}

// listAdapters converts the linked list of adapters that Windows returns to a slice. It omits the loopback adapter.
func listAdapters(first *windows.IpAdapterAddresses) (all []adapter) {
	for a := first; a != nil; a = a.Next {
		if a.IfType == windows.IF_TYPE_SOFTWARE_LOOPBACK {
			continue
		}
		one := adapter{
			Index: a.Ipv6IfIndex, Up: a.OperStatus == windows.IfOperStatusUp,
			HasGateway: a.FirstGatewayAddress != nil, Metric: cmp.Or(a.Ipv4Metric, a.Ipv6Metric),
		}
		for s := a.FirstDnsServerAddress; s != nil; s = s.Next {
			// Of addresses that are neither IPv4 nor IPv6, IP returns nil.
			if ip, ok := netip.AddrFromSlice(s.Address.IP()); ok {
				one.Servers = append(one.Servers, ip.Unmap())
			}
		}
		all = append(all, one)
	}
	return all
}
