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

// socket is what a datagram and a stream have in common: addresses, deadlines and an end.
type socket struct {
	network     string
	local, peer netip.AddrPort // peer is not valid if the socket is not connected
	closed      chan struct{}
	close       sync.Once
	read, write deadline.Deadline
}

func (s *socket) LocalAddr() net.Addr { return netAddr(s.network, s.local) }

// RemoteAddr returns nil if the socket is not connected, as the net package's do.
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

func (s *socket) set(d *deadline.Deadline, t time.Time) error {
	select {
	case <-s.closed:
		return s.failed("set", net.ErrClosed)
	default:
		d.Set(t)
		return nil
	}
}

// over returns the error of an operation if the socket is closed or its deadline has passed.
func (s *socket) over(op string, d *deadline.Deadline) error {
	select {
	case <-s.closed:
		return s.failed(op, net.ErrClosed)
	case <-d.Passed():
		return s.failed(op, os.ErrDeadlineExceeded)
	default:
		return nil
	}
}

func (s *socket) failed(op string, err error) error {
	return opError(op, s.network, s.LocalAddr(), err)
}

// end closes the socket and calls then, once.
func (s *socket) end(then func()) error {
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
