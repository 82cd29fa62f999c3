package netsim

import (
	"net"
	"net/netip"
	"os"
	"syscall"
)

// A datagram is a UDP socket. It is connected if peer is valid.
type datagram struct {
	socket
	m  *memory
	in chan message
}

// A message is a received datagram. If err is set, it reports that a datagram to the address from was refused.
type message struct {
	data []byte
	from netip.AddrPort
	err  error
}

var (
	_ net.Conn       = (*datagram)(nil)
	_ net.PacketConn = (*datagram)(nil)
)

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

// newDatagram makes a socket. The caller holds m.mu.
func (m *memory) newDatagram(at, peer netip.AddrPort) *datagram {
	d := &datagram{socket{network: "udp", local: at, peer: peer, closed: make(chan struct{})}, m, make(chan message, inbox)}
	m.datagrams[at] = d
	return d
}

func (d *datagram) Read(b []byte) (int, error) {
	n, _, err := d.ReadFrom(b)
	return n, err
}

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

func (d *datagram) Write(b []byte) (int, error) {
	if !d.peer.IsValid() {
		return 0, d.wrapError("write", syscall.EDESTADDRREQ)
	}
	return d.send(b, d.peer)
}

func (d *datagram) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok || d.peer.IsValid() {
		return 0, opError("write", "udp", addr, syscall.EINVAL)
	}
	ap := a.AddrPort()
	return d.send(b, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
}

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

// deliverDatagram delivers a message to the socket with the address to. If there is none, it reports the refusal to the sender, as ICMP
// does.
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

func (d *datagram) Close() error {
	return d.closeOnce(func() {
		d.m.mu.Lock()
		delete(d.m.datagrams, d.local)
		d.m.mu.Unlock()
	})
}
