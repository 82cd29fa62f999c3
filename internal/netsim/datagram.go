package netsim

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/internal/deadline"
)

// datagram is a UDP socket. It is connected if peer is valid.
type datagram struct {
	m           *memory
	local       netip.AddrPort
	peer        netip.AddrPort
	in          chan message
	closed      chan struct{}
	close       sync.Once
	read, write deadline.Deadline
}

// message is a datagram, or if err is set, the refusal of one.
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
		at, err = m.port(at.Addr())
	} else if m.datagrams[at] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, opError("listen", network, netAddr(network, at), err)
	}
	return m.bind(at, netip.AddrPort{}), nil
}

// bind makes a socket. The caller holds m.mu.
func (m *memory) bind(at, peer netip.AddrPort) *datagram {
	d := &datagram{m: m, local: at, peer: peer, in: make(chan message, inbox), closed: make(chan struct{})}
	m.datagrams[at] = d
	return d
}

func (d *datagram) Read(b []byte) (int, error) {
	n, _, err := d.ReadFrom(b)
	return n, err
}

func (d *datagram) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case <-d.closed:
		return 0, nil, opError("read", "udp", d.LocalAddr(), net.ErrClosed)
	case <-d.read.Passed():
		return 0, nil, opError("read", "udp", d.LocalAddr(), os.ErrDeadlineExceeded)
	default:
	}
	select {
	case <-d.closed:
		return 0, nil, opError("read", "udp", d.LocalAddr(), net.ErrClosed)
	case <-d.read.Passed():
		return 0, nil, opError("read", "udp", d.LocalAddr(), os.ErrDeadlineExceeded)
	case l := <-d.in:
		if l.err != nil {
			return 0, nil, opError("read", "udp", d.LocalAddr(), os.NewSyscallError("read", l.err))
		}
		return copy(b, l.data), net.UDPAddrFromAddrPort(l.from), nil
	}
}

func (d *datagram) Write(b []byte) (int, error) {
	if !d.peer.IsValid() {
		return 0, opError("write", "udp", d.LocalAddr(), syscall.EDESTADDRREQ)
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
	select {
	case <-d.closed:
		return 0, opError("write", "udp", d.LocalAddr(), net.ErrClosed)
	case <-d.write.Passed():
		return 0, opError("write", "udp", d.LocalAddr(), os.ErrDeadlineExceeded)
	default:
	}
	link := d.m.link(d.local.Addr(), to.Addr())
	if link == nil {
		return 0, opError("write", "udp", net.UDPAddrFromAddrPort(to), syscall.ENETUNREACH)
	}
	data := append([]byte(nil), b...)
	link.send(flow{d.local, to, protoUDP}, len(b), func() { d.m.arrive(message{data: data, from: d.local}, to) })
	return len(b), nil
}

// arrive hands a datagram to the socket it is for. If there is none, it sends a
// refusal back, as ICMP does.
func (m *memory) arrive(l message, to netip.AddrPort) {
	m.mu.Lock()
	d := m.datagrams[to]
	m.mu.Unlock()
	switch {
	case d == nil && l.err == nil:
		if back := m.link(to.Addr(), l.from.Addr()); back != nil {
			back.send(flow{to, l.from, 1}, 0, func() { m.arrive(message{from: to, err: syscall.ECONNREFUSED}, l.from) })
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
	err := net.ErrClosed
	d.close.Do(func() {
		err = nil
		close(d.closed)
		d.read.Set(time.Time{})
		d.write.Set(time.Time{})
		d.m.mu.Lock()
		delete(d.m.datagrams, d.local)
		d.m.mu.Unlock()
	})
	return err
}

func (d *datagram) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(d.local) }

// RemoteAddr returns nil if the socket is not connected, as the net package's do.
func (d *datagram) RemoteAddr() net.Addr {
	if !d.peer.IsValid() {
		return nil
	}
	return net.UDPAddrFromAddrPort(d.peer)
}

func (d *datagram) SetDeadline(t time.Time) error {
	return errors.Join(d.SetReadDeadline(t), d.SetWriteDeadline(t))
}
func (d *datagram) SetReadDeadline(t time.Time) error  { return d.set(&d.read, t) }
func (d *datagram) SetWriteDeadline(t time.Time) error { return d.set(&d.write, t) }

func (d *datagram) set(l *deadline.Deadline, t time.Time) error {
	select {
	case <-d.closed:
		return opError("set", "udp", d.LocalAddr(), net.ErrClosed)
	default:
		l.Set(t)
		return nil
	}
}
