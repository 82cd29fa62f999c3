package nameservers

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// A udpConn is a UDP socket that is connected to a name server. It behaves like the result of net.DialUDP, but opening
// it makes fewer system calls: none to permit broadcasts, and none to find out its addresses.
type udpConn struct {
	*os.File                // nonblocking, so that the runtime's poller waits for it
	local    netip.AddrPort // without the address, which only the system knows
	remote   netip.AddrPort
}

// dialUDP opens a UDP socket with the given local port that is connected to the address to.
func dialUDP(port uint16, to netip.AddrPort) (net.Conn, error) {
	addr := to.Addr().Unmap()
	c := &udpConn{local: netip.AddrPortFrom(netip.IPv4Unspecified(), port), remote: netip.AddrPortFrom(addr, to.Port())}
	family := syscall.AF_INET
	var local, remote syscall.Sockaddr = &syscall.SockaddrInet4{Port: int(port)}, nil
	switch {
	case addr.Is4():
		remote = &syscall.SockaddrInet4{Port: int(to.Port()), Addr: addr.As4()}
	case addr.Zone() == "":
		c.local, family = netip.AddrPortFrom(netip.IPv6Unspecified(), port), syscall.AF_INET6
		local, remote = &syscall.SockaddrInet6{Port: int(port)}, &syscall.SockaddrInet6{Port: int(to.Port()), Addr: addr.As16()}
	default:
		return dialUDPByNet(&net.UDPAddr{Port: int(port)}, to) // package net looks up the index of the interface
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, c.newError("dial", os.NewSyscallError("socket", err))
	}
	if err = syscall.Bind(fd, local); err != nil {
		err = os.NewSyscallError("bind", err)
	} else {
		err = os.NewSyscallError("connect", syscall.Connect(fd, remote))
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, c.newError("dial", err)
	}
	c.File = os.NewFile(uintptr(fd), "udp")
	return c, nil
}

// Read implements net.Conn. It reads one message, which may be empty.
func (c *udpConn) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if err == io.EOF {
		return 0, nil // an empty message
	}
	return n, c.newError("read", err)
}

// Write implements net.Conn. It sends one message.
func (c *udpConn) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	return n, c.newError("write", err)
}

// LocalAddr implements net.Conn. The IP address is unspecified.
func (c *udpConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *udpConn) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(c.remote) }

// newError returns the error of package net for the error err of the operation op. It returns nil if err is nil.
func (c *udpConn) newError(op string, err error) error {
	if err == nil {
		return nil
	}
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		err = path.Err
		if errno, ok := err.(syscall.Errno); ok {
			err = os.NewSyscallError(op, errno)
		}
	}
	if err == os.ErrClosed {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "udp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
