// Package netsim simulates a network with the faults of a real one, for tests and
// benchmarks: delay, loss, bursts of loss, reordering, limited rate and black holes,
// for each link and direction by itself, and repeatable by a seed.
//
// A [Network] has a few hosts, each joined with every other by two [Link]s, one
// per direction. There are two kinds, with the same API:
//
//   - [NewMemory] needs no privileges. Its sockets are Go values and its time is that
//     of package time, and so it works under testing/synctest, where a simulated
//     minute takes no real time.
//   - [NewKernel] needs root on Linux. Every host is a network namespace with a
//     TUN device, and the Network is the router between the devices: real kernel
//     UDP, TCP and TLS at both ends, and other programs can take part.
//
// Each link has a random number generator of its own. With the same seed, the same
// packets in the same order are lost and delayed alike.
package netsim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"sync"
)

// ErrUnsupported is returned by [NewKernel] if the system is not Linux or lacks TUN devices, or if the process is not root.
// [Host.Start] of a memory network returns it, too.
var ErrUnsupported = errors.New("netsim: needs root, Linux and /dev/net/tun")

// maxHosts is the maximum number of hosts in a network, all of which have addresses in one /24 network.
const maxHosts = 254

// A Network is a set of hosts with links between all of them. It is safe for concurrent use. The caller must call Close.
type Network struct {
	hosts []*Host
	links [][]*Link // links by Host.id of the sender, and then of the receiver
	clock *clock    // delivers the packets of all links
	back  backend   // makes the sockets
	close sync.Once // makes further calls of Close have no effect
	err   error     // result of Close
}

// A backend makes the sockets of a network, in memory or in the kernel. Its methods do the same as the exported methods of Host
// and Network.
type backend interface {
	dial(ctx context.Context, h *Host, network string, to netip.AddrPort) (net.Conn, error)
	listen(h *Host, network string, at netip.AddrPort) (net.Listener, error)
	listenPacket(h *Host, network string, at netip.AddrPort) (net.PacketConn, error)
	start(h *Host, c *exec.Cmd) error
	close() error
}

// A Host is a host of a [Network], with one IPv4 address. It is immutable, and safe for concurrent use.
type Host struct {
	net  *Network
	id   int // index of the host in Network.hosts
	name string
	addr netip.Addr
}

// newNetwork returns a network without a backend, with the given names of hosts. It returns an error if there are fewer than
// two or more than maxHosts names, or if a name occurs twice.
func newNetwork(seed uint64, names []string) (*Network, error) {
	if len(names) < 2 || len(names) > maxHosts {
		return nil, fmt.Errorf("netsim: %d hosts; want 2 to %d", len(names), maxHosts)
	}
	n := &Network{clock: newClock()}
	for i, name := range names {
		for _, h := range n.hosts {
			if h.name == name {
				n.clock.close()
				return nil, fmt.Errorf("netsim: two hosts named %q", name)
			}
		}
		n.hosts = append(n.hosts, &Host{net: n, id: i, name: name, addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)})})
	}
	for i := range names {
		n.links = append(n.links, nil)
		for j := range names {
			n.links[i] = append(n.links[i], newLink(n.clock, seed, uint64(i*maxHosts+j)))
		}
	}
	return n, nil
}

// Host returns the host with the given name. It panics if there is no such host.
func (n *Network) Host(name string) *Host {
	for _, h := range n.hosts {
		if h.name == name {
			return h
		}
	}
	panic(fmt.Sprintf("netsim: no host named %q", name))
}

// Link returns the link that carries packets from the host from to the host to. It panics if there is no such host.
func (n *Network) Link(from, to string) *Link { return n.links[n.Host(from).id][n.Host(to).id] }

// Set sets the profile of the links in both directions between the hosts a and b. It panics if there is no such host.
func (n *Network) Set(a, b string, p Profile) {
	n.Link(a, b).Set(p)
	n.Link(b, a).Set(p)
}

// EnablePreciseTiming makes packets arrive within about 0.1 ms of their arrival time, on Linux, instead of 1 ms. It must not be
// used in a bubble of testing/synctest: fake time is exact anyway, and packets would not arrive.
func (n *Network) EnablePreciseTiming() { n.clock.precise.Store(true) }

// Close removes the namespaces and devices of the network. Packets in transit are lost. It does not close sockets or end
// processes. Further calls have no effect and return the same error.
func (n *Network) Close() error {
	n.close.Do(func() {
		n.err = n.back.close()
		n.clock.close()
	})
	return n.err
}

// Name returns the name of the host.
func (h *Host) Name() string { return h.name }

// Addr returns the IPv4 address of the host.
func (h *Host) Addr() netip.Addr { return h.addr }

// DialContext opens a connection from h, as [net.Dialer.DialContext] does. The network must be tcp, tcp4, udp or udp4. The
// address consists of an IP address or the name of a host of the network, and a port number. No DNS resolver is used.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.dial(ctx, h, network, to)
}

// Listen opens a TCP listener on h. The address usually has an empty host part, which stands for h.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	at, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.listen(h, network, at)
}

// ListenPacket opens a UDP socket on h. The address usually has an empty host part, which stands for h.
func (h *Host) ListenPacket(network, address string) (net.PacketConn, error) {
	at, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.listenPacket(h, network, at)
}

// Start starts the command c in the network namespace of h. In a memory network, it returns [ErrUnsupported].
func (h *Host) Start(c *exec.Cmd) error { return h.net.back.start(h, c) }

// resolve parses an address such as "name:53", with the name or IP address of a host. An empty host part stands for h. It
// returns an error if the network is not supported, the port is not a number, or there is no host with that name.
func (h *Host) resolve(network, address string) (netip.AddrPort, error) {
	switch network {
	case "tcp", "tcp4", "udp", "udp4":
	default:
		return netip.AddrPort{}, net.UnknownNetworkError(network)
	}
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("netsim: address %q: port %q is not a number", address, port)
	}
	if name == "" {
		return netip.AddrPortFrom(h.addr, uint16(p)), nil
	}
	for _, o := range h.net.hosts {
		if o.name == name {
			return netip.AddrPortFrom(o.addr, uint16(p)), nil
		}
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("netsim: address %q: no host named %q", address, name)
	}
	return netip.AddrPortFrom(ip, uint16(p)), nil
}
