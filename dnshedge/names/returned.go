package names

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// maxHostsOfAddress is the limit of hosts per address, if LookupNetIP has returned the same address for several hosts.
const maxHostsOfAddress = 8

// returnedAddresses maps each address that LookupNetIP has returned to the hosts that were looked up. By it, Names finds
// the hosts of a connection that was dialled by IP address. Names.mu guards its fields.
type returnedAddresses struct {
	hosts  map[netip.Addr][]*host // at most maxHostsOfAddress; the latest is last
	shared atomic.Int64           // number of addresses with several hosts; read without a lock
}

// hostContextKey is the context key under which the RoundTripper of Drain stores the host name in the URL of a request.
// trackByAddress reads it to find the host to which a connection belongs that was dialled by IP address.
type hostContextKey struct{}

// addHost records that LookupNetIP has returned the address ip for the host h. Eight hosts are stored for an address
// (maxHostsOfAddress). A further host replaces the host for which LookupNetIP has not returned the address for the
// longest time. The caller must hold mu.
func (g *returnedAddresses) addHost(ip netip.Addr, h *host) {
	hosts := g.hosts[ip]
	if len(hosts) > 0 && hosts[len(hosts)-1] == h {
		return
	}
	g.removeHost(ip, h)
	if hosts = g.hosts[ip]; len(hosts) == maxHostsOfAddress {
		hosts = slices.Delete(hosts, 0, 1)
	}
	if len(hosts) == 1 {
		g.shared.Add(1)
	}
	g.hosts[ip] = append(hosts, h)
}

// removeHost deletes the record that LookupNetIP has returned the address ip for the host h, because h is forgotten or
// has lost the address. The caller must hold mu.
func (g *returnedAddresses) removeHost(ip netip.Addr, h *host) {
	hosts := g.hosts[ip]
	i := slices.Index(hosts, h)
	if i < 0 {
		return
	}
	if len(hosts) == 2 {
		g.shared.Add(-1)
	}
	if hosts = slices.Delete(hosts, i, i+1); len(hosts) == 0 {
		delete(g.hosts, ip)
	} else {
		g.hosts[ip] = hosts
	}
}
