package netsim

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/deadline"
)

// A socket is the part that UDP sockets and TCP connections of a memory network have in common: addresses, deadlines and
// closing.
type socket struct {
	network     string            // "tcp" or "udp"
	local, peer netip.AddrPort    // addresses; peer is not valid if the socket is not connected
	closed      chan struct{}     // closed by Close
	close       sync.Once         // makes further calls of Close return an error
	read, write deadline.Deadline // deadlines of read and write operations
}

func (s *socket) LocalAddr() net.Addr { return netAddr(s.network, s.local) }

// RemoteAddr returns the address of the peer, or nil if the socket is not connected.
func (s *socket) RemoteAddr() net.Addr {
	if !s.peer.IsValid() {
		return nil
	}
	return netAddr(s.network, s.peer)
}

func (s *socket) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
func (s *socket) SetReadDeadline(t time.Time) error  { return s.set(&s.read, t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return s.set(&s.write, t) }

// set sets the deadline d to t. It returns an error if the socket is closed.
func (s *socket) set(d *deadline.Deadline, t time.Time) error {
	select {
	case <-s.closed:
		return s.wrapError("set", net.ErrClosed)
	default:
		d.Set(t)
		return nil
	}
}

// checkOpen returns nil if the operation op may proceed. It returns an error if the socket is closed or the deadline d has
// passed.
func (s *socket) checkOpen(op string, d *deadline.Deadline) error {
	select {
	case <-s.closed:
		return s.wrapError(op, net.ErrClosed)
	case <-d.Passed():
		return s.wrapError(op, os.ErrDeadlineExceeded)
	default:
		return nil
	}
}

// wrapError returns err as a net.OpError of the operation op on this socket.
func (s *socket) wrapError(op string, err error) error {
	return opError(op, s.network, s.LocalAddr(), err)
}

// closeOnce closes the socket and then calls the function then. Further calls return net.ErrClosed without calling then.
func (s *socket) closeOnce(then func()) error {
	err := net.ErrClosed
	s.close.Do(func() {
		err = nil
		close(s.closed)
		s.read.Set(time.Time{})
		s.write.Set(time.Time{})
		then()
	})
	return err
}
