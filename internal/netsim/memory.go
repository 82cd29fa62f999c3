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
	firstPort = 32768 // first ephemeral port
	inbox     = 512   // length of a receive queue; further datagrams are lost, and further streams refused
)

// NewMemory returns a network inside this process. A network that is made in a bubble of testing/synctest belongs to that bubble.
//
// Datagrams behave as in the kernel: a datagram to a port without a socket is refused. Streams retransmit a lost segment after 200 ms, and
// then with doubled timeouts up to 8 s. They have no flow control, so a Write never blocks.
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

type memory struct {
	net *Network

	mu        sync.Mutex            // guards the fields below
	next      map[netip.Addr]uint16 // next ephemeral port, by host
	datagrams map[netip.AddrPort]*datagram
	listeners map[netip.AddrPort]*listener
	streams   map[netip.AddrPort]bool // local addresses of dialled streams
}

func (m *memory) close() error { return nil }

func (m *memory) start(*Host, *exec.Cmd) error { return ErrUnsupported }

// link returns the link between two addresses; nil if the network lacks one of them.
func (m *memory) link(from, to netip.Addr) *Link {
	i, j := m.index(from), m.index(to)
	if i < 0 || j < 0 {
		return nil
	}
	return m.net.links[i][j]
}

// index returns the index of the host with the given address; -1 if there is none.
func (m *memory) index(a netip.Addr) int {
	for _, h := range m.net.hosts {
		if h.addr == a {
			return h.id
		}
	}
	return -1
}

// freePort returns an address of the host with a free port. The caller holds m.mu.
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

// opError returns a net.OpError, as package net does.
func opError(op, network string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: addr, Err: err}
}

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

func netAddr(network string, a netip.AddrPort) net.Addr {
	if network[0] == 'u' {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}
