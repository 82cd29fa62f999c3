package dnshedge

import (
	"context"
	"io"
	"net"
	"time"
)

const (
	drainTime    = time.Second            // for a client to notice that its connection was closed
	drainBytes   = 1 << 18                // of a connection that are read after Shutdown, and again while it is drained
	receivedTime = 100 * time.Millisecond // to read what had been received before Shutdown
)

// Shutdown ends Serve and ServePacket, answers what has been received, and returns when that is
// done. If ctx ends first, it closes the connections that are left, and returns the context's
// cause without waiting for what ends with them. Of a connection it reads 256 KiB at most. The Client stays open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.init()
	received := s.endReading()
	if received {
		t := time.NewTimer(receivedTime)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.cancel()
	s.mu.Lock()
	for c, listens := range s.open {
		if listens {
			_ = c.Close()
		} else {
			go c.Close()
		}
	}
	s.mu.Unlock()
	return err
}

// endReading closes listeners, and leaves the time to read what sockets and connections have received. It reports whether there are any.
func (s *Server) endReading() (received bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	for c, listens := range s.open {
		switch c := c.(type) {
		case interface{ SetReadDeadline(time.Time) error }:
			_ = c.SetReadDeadline(time.Now().Add(receivedTime)) // answers are still written to it
			_, datagrams := c.(net.PacketConn)
			received = received || datagrams
		default:
			if listens {
				_ = c.Close()
			}
		}
	}
	return received
}

// isClosing reports whether Shutdown has begun.
func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// drain ends a connection to which a response was written a moment ago: if it were closed with questions unread, the kernel would
// reset it, and its last answers might be lost. A connection that cannot be half closed is read for a moment only.
func (c *serverConn) drain() {
	c.s.mu.Lock()
	idle := c.left && !c.drains
	c.s.mu.Unlock()
	if idle || time.Since(c.wrote) > drainTime { // no goroutine writes any more
		return
	}
	wait := receivedTime
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		wait = drainTime
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, _ = io.CopyN(io.Discard, c.Conn, drainBytes)
}
