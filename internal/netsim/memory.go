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
	firstPort = 32768 // of those that are given to sockets without one
	inbox     = 512   // datagrams, or new streams, that wait for their reader; more are lost, or refused
)

// NewMemory returns a network inside this process.
//
// Datagrams behave as the kernel's do: one to a port without a socket is refused.
// Streams send a lost segment again after 200 ms, and then after twice the time
// before, up to 8 s. They have no window, and so a Write never waits. A network that
// is made inside a testing/synctest bubble belongs to that bubble.
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
	next      map[netip.Addr]uint16 // the port to try first, by host
	datagrams map[netip.AddrPort]*datagram
	listeners map[netip.AddrPort]*listener
	streams   map[netip.AddrPort]bool // local ports of dialled streams
}

func (m *memory) close() error { return nil }

func (m *memory) start(*Host, *exec.Cmd) error { return ErrUnsupported }

// link returns the link between two addresses, or nil if either is not of the network.
func (m *memory) link(from, to netip.Addr) *Link {
	i, j := m.index(from), m.index(to)
	if i < 0 || j < 0 {
		return nil
	}
	return m.net.links[i][j]
}

// index returns the number of the host with that address, or -1.
func (m *memory) index(a netip.Addr) int {
	for _, h := range m.net.hosts {
		if h.addr == a {
			return h.id
		}
	}
	return -1
}

// freePort returns a free port of the host. The caller holds m.mu.
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

// opError returns an error like those of package net.
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
		return m.bind(at, to), nil
	}
	return m.dialStream(ctx, h, network, to)
}

func netAddr(network string, a netip.AddrPort) net.Addr {
	if network[0] == 'u' {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}
