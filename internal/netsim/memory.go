package netsim

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
)

const (
	firstPort     = 32768 // first port number that is chosen automatically
	queueCapacity = 512   // capacity of a receive queue; further datagrams are lost, and further connections refused
)

// NewMemory returns a network whose sockets exist only in the memory of this process. A network that is created in a bubble of
// testing/synctest belongs to that bubble.
//
// Datagrams behave as in the kernel: a datagram to a port without a socket is refused. TCP connections retransmit a lost
// segment after 200 ms, and then after doubled timeouts of up to 8 s. They have no flow control, so that Write never blocks.
func NewMemory(seed uint64, hosts ...string) (*Network, error) {
	n, err := newNetwork(seed, hosts)
	if err != nil {
		return nil, err
	}
	n.back = &memory{
		net:       n,
		next:      make(map[netip.Addr]uint16),
		datagrams: make(map[netip.AddrPort]*datagram),
		listeners: make(map[netip.AddrPort]*listener),
		streams:   make(map[netip.AddrPort]bool),
	}
	return n, nil
}

// A memory is the backend of a network in the memory of this process.
type memory struct {
	net *Network

	mu        sync.Mutex                   // guards the fields that follow
	next      map[netip.Addr]uint16        // next port number to try for a new socket, by address of the host
	datagrams map[netip.AddrPort]*datagram // open UDP sockets, by local address
	listeners map[netip.AddrPort]*listener // TCP listeners, by address
	streams   map[netip.AddrPort]bool      // local addresses of TCP connections that were dialled
}

// close implements [backend]. It does nothing, because garbage collection frees the sockets.
func (m *memory) close() error { return nil }

// start implements [backend]. It returns [ErrUnsupported], because other processes cannot use a memory network.
func (m *memory) start(*Host, *exec.Cmd) error { return ErrUnsupported }

// link returns the link for packets between two addresses, or nil if an address belongs to no host of the network.
func (m *memory) link(from, to netip.Addr) *Link {
	i, j := m.index(from), m.index(to)
	if i < 0 || j < 0 {
		return nil
	}
	return m.net.links[i][j]
}

// index returns the Host.id of the host with the given address, or -1 if there is no such host.
func (m *memory) index(a netip.Addr) int {
	for _, h := range m.net.hosts {
		if h.addr == a {
			return h.id
		}
	}
	return -1
}

// freePort returns the address a with a port that no socket uses. It returns EADDRNOTAVAIL if all ports are in use. The caller
// must hold m.mu.
func (m *memory) freePort(a netip.Addr) (netip.AddrPort, error) {
	for range 1<<16 - firstPort {
		p := max(m.next[a], firstPort)
		m.next[a] = p + 1 // after the last port comes 0, which max replaces
		ap := netip.AddrPortFrom(a, p)
		if m.datagrams[ap] == nil && m.listeners[ap] == nil && !m.streams[ap] {
			return ap, nil
		}
	}
	return netip.AddrPort{}, syscall.EADDRNOTAVAIL
}

// opError returns err as a net.OpError, as package net does.
func opError(op, network string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: addr, Err: err}
}

// dial implements [backend]. It opens a UDP socket or a TCP connection from the host h to the address to.
func (m *memory) dial(ctx context.Context, h *Host, network string, to netip.AddrPort) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, opError("dial", network, netAddr(network, to), err)
	}
	if network == "udp" || network == "udp4" {
		m.mu.Lock()
		defer m.mu.Unlock()
		at, err := m.freePort(h.addr)
		if err != nil {
			return nil, opError("dial", network, netAddr(network, to), err)
		}
		return m.newDatagram(at, to), nil
	}
	return m.dialStream(ctx, h, network, to)
}

// netAddr returns a as a *net.UDPAddr or a *net.TCPAddr, depending on the network.
func netAddr(network string, a netip.AddrPort) net.Addr {
	if network[0] == 'u' {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}
