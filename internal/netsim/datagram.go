package netsim

import (
	"net"
	"net/netip"
	"os"
	"syscall"
)

// A datagram is a UDP socket of a memory network. It is connected if peer is valid.
type datagram struct {
	socket
	m  *memory      // network of the socket
	in chan message // received messages that were not read yet
}

// A message is a received datagram with the address of its sender. If err is not nil, it reports instead that a datagram to the
// address from was refused.
type message struct {
	data []byte
	from netip.AddrPort
	err  error
}

var (
	_ net.Conn       = (*datagram)(nil)
	_ net.PacketConn = (*datagram)(nil)
)

// listenPacket implements [backend]. It opens a UDP socket at the address at, and chooses a port if that of the address is 0.
func (m *memory) listenPacket(_ *Host, network string, at netip.AddrPort) (net.PacketConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if at.Port() == 0 {
		at, err = m.freePort(at.Addr())
	} else if m.datagrams[at] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, opError("listen", network, netAddr(network, at), err)
	}
	return m.newDatagram(at, netip.AddrPort{}), nil
}

// newDatagram opens a UDP socket with the local address at. The socket is connected if peer is valid. The caller must hold
// m.mu.
func (m *memory) newDatagram(at, peer netip.AddrPort) *datagram {
	d := &datagram{socket{network: "udp", local: at, peer: peer, closed: make(chan struct{})}, m, make(chan message, queueCapacity)}
	m.datagrams[at] = d
	return d
}

// Read implements net.Conn. It reads one datagram, and drops the bytes that do not fit into b.
func (d *datagram) Read(b []byte) (int, error) {
	n, _, err := d.ReadFrom(b)
	return n, err
}

// ReadFrom implements net.PacketConn. If the socket is connected and a datagram to its peer was refused, ReadFrom returns
// ECONNREFUSED.
func (d *datagram) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		if err := d.checkOpen("read", &d.read); err != nil {
			return 0, nil, err
		}
		select {
		case <-d.closed:
		case <-d.read.Passed():
		case l := <-d.in:
			if l.err != nil {
				return 0, nil, d.wrapError("read", os.NewSyscallError("read", l.err))
			}
			return copy(b, l.data), net.UDPAddrFromAddrPort(l.from), nil
		}
	}
}

// Write implements net.Conn. It returns an error if the socket is not connected.
func (d *datagram) Write(b []byte) (int, error) {
	if !d.peer.IsValid() {
		return 0, d.wrapError("write", syscall.EDESTADDRREQ)
	}
	return d.send(b, d.peer)
}

// WriteTo implements net.PacketConn. It returns an error if the socket is connected.
func (d *datagram) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok || d.peer.IsValid() {
		return 0, opError("write", "udp", addr, syscall.EINVAL)
	}
	ap := a.AddrPort()
	return d.send(b, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
}

// send sends a copy of b to the address to.
func (d *datagram) send(b []byte, to netip.AddrPort) (int, error) {
	if err := d.checkOpen("write", &d.write); err != nil {
		return 0, err
	}
	link := d.m.link(d.local.Addr(), to.Addr())
	if link == nil {
		return 0, opError("write", "udp", net.UDPAddrFromAddrPort(to), syscall.ENETUNREACH)
	}
	data := append([]byte(nil), b...)
	link.send(flow{d.local, to, protoUDP}, len(b), func() { d.m.deliverDatagram(message{data: data, from: d.local}, to) })
	return len(b), nil
}

// deliverDatagram delivers the message l to the socket with the address to. If there is no such socket, the sender gets a
// message that the datagram was refused, as with ICMP. Messages that do not fit into the receive queue are lost.
func (m *memory) deliverDatagram(l message, to netip.AddrPort) {
	m.mu.Lock()
	d := m.datagrams[to]
	m.mu.Unlock()
	switch {
	case d == nil && l.err == nil:
		if back := m.link(to.Addr(), l.from.Addr()); back != nil {
			back.send(flow{to, l.from, 1}, 0, func() { m.deliverDatagram(message{from: to, err: syscall.ECONNREFUSED}, l.from) })
		}
	case d == nil, d.peer.IsValid() && d.peer != l.from, l.err != nil && !d.peer.IsValid():
	default:
		select {
		case d.in <- l:
		default:
		}
	}
}

// Close closes the socket, whose port is then free. A second call returns an error.
func (d *datagram) Close() error {
	return d.closeOnce(func() {
		d.m.mu.Lock()
		delete(d.m.datagrams, d.local)
		d.m.mu.Unlock()
	})
}
