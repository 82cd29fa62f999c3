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

// ErrUnsupported is what [NewKernel] returns where it cannot work, and what
// [Host.Start] returns on a memory network.
var ErrUnsupported = errors.New("netsim: needs root, Linux and /dev/net/tun")

// maxHosts is how many addresses a /24 has.
const maxHosts = 254

// Network is a set of hosts and the links between them.
// Its methods may be called from several goroutines at once.
type Network struct {
	hosts []*Host
	links [][]*Link // by from and to
	clock *clock
	back  backend
	close sync.Once
	err   error // of close
}

// backend makes the sockets.
type backend interface {
	dial(ctx context.Context, h *Host, network string, to netip.AddrPort) (net.Conn, error)
	listen(h *Host, network string, at netip.AddrPort) (net.Listener, error)
	listenPacket(h *Host, network string, at netip.AddrPort) (net.PacketConn, error)
	start(h *Host, c *exec.Cmd) error
	close() error
}

// Host is one end of links.
type Host struct {
	net  *Network
	id   int
	name string
	addr netip.Addr
}

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

// Host returns the host of that name. It panics if there is none.
func (n *Network) Host(name string) *Host {
	for _, h := range n.hosts {
		if h.name == name {
			return h
		}
	}
	panic(fmt.Sprintf("netsim: no host named %q", name))
}

// Link returns the link for packets from one host to another.
// It panics if there is no such host.
func (n *Network) Link(from, to string) *Link { return n.links[n.Host(from).id][n.Host(to).id] }

// Set gives the links of both directions between two hosts the same profile.
func (n *Network) Set(a, b string, p Profile) {
	n.Link(a, b).Set(p)
	n.Link(b, a).Set(p)
}

// Precise makes packets arrive within about a tenth of a millisecond of their time,
// where the system can, and not within a millisecond as with timers. It is for real
// time only: under testing/synctest, which is exact anyway, packets would not arrive.
func (n *Network) Precise() { n.clock.precise.Store(true) }

// Close ends the network: packets under way are lost, namespaces and devices are
// removed. It neither closes sockets nor ends processes; whoever opened or started
// them must. Only the first call does anything; all calls return its error.
func (n *Network) Close() error {
	n.close.Do(func() {
		n.err = n.back.close()
		n.clock.close()
	})
	return n.err
}

// Name returns the name that the host was made with.
func (h *Host) Name() string { return h.name }

// Addr returns the host's only address, IPv4.
func (h *Host) Addr() netip.Addr { return h.addr }

// DialContext opens a socket on h, as a net.Dialer does. Networks are tcp, udp
// and their variants ending in 4; the address is an IP or a host of the network,
// and a port. It does not ask any resolver.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.dial(ctx, h, network, to)
}

// Listen listens for TCP on h. An empty host in the address is h.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	at, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.listen(h, network, at)
}

// ListenPacket listens for UDP on h. An empty host in the address is h.
func (h *Host) ListenPacket(network, address string) (net.PacketConn, error) {
	at, err := h.resolve(network, address)
	if err != nil {
		return nil, err
	}
	return h.net.back.listenPacket(h, network, at)
}

// Start starts a command whose sockets are h's. On a memory network it returns
// [ErrUnsupported].
func (h *Host) Start(c *exec.Cmd) error { return h.net.back.start(h, c) }

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
