package netsim

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	maxSegmentSize = 1460                   // maximum segment size in bytes
	synRetry       = time.Second            // time after which a lost SYN is sent again for the first time
	minRTO         = 200 * time.Millisecond // first retransmission timeout
	maxRTO         = 8 * time.Second        // maximum retransmission timeout
)

// A stream is one end of a TCP connection in a memory network.
type stream struct {
	socket
	m     *memory // network of the connection
	other *stream // other end of the connection

	mu   sync.Mutex     // guards the fields that follow
	more chan struct{}  // closed, and replaced, when new data or an error can be read
	buf  []byte         // data that has arrived in order and was not read yet
	err  error          // error that Read returns after the data in buf; nil: the connection is open
	next int            // number of the next segment to append to buf
	late map[int][]byte // segments that were not appended to buf yet, by number; a nil segment is the end of the stream
	sent int            // number of segments that were sent
}

var _ net.Conn = (*stream)(nil)

// newStream returns one end of a connection. The caller must set other.
func (m *memory) newStream(local, peer netip.AddrPort) *stream {
	return &stream{socket: socket{network: "tcp", local: local, peer: peer, closed: make(chan struct{})}, m: m, more: make(chan struct{}), late: make(map[int][]byte)}
}

// dialStream opens a TCP connection from the host h to the address to. It repeats a lost SYN until ctx ends.
func (m *memory) dialStream(ctx context.Context, h *Host, network string, to netip.AddrPort) (net.Conn, error) {
	there, back := m.link(h.addr, to.Addr()), m.link(to.Addr(), h.addr)
	if there == nil {
		return nil, opError("dial", network, netAddr(network, to), syscall.ENETUNREACH)
	}
	m.mu.Lock()
	at, err := m.freePort(h.addr)
	if err == nil {
		m.streams[at] = true
	}
	m.mu.Unlock()
	if err != nil {
		return nil, opError("dial", network, netAddr(network, to), err)
	}
	type outcome struct {
		s   *stream
		err error
	}
	answer := make(chan outcome, 1)
	var once sync.Once // one connection per dial, however many SYNs arrive
	syn := func() {
		once.Do(func() {
			o := m.connectStreams(at, to)
			reply := func() { answer <- outcome{o.local, o.err} }
			m.sendReliably(back, flow{to, at, protoTCP}, 0, minRTO, nil, reply)
		})
	}
	for wait := synRetry; ; wait *= 2 {
		there.send(flow{at, to, protoTCP}, 0, syn)
		t := time.NewTimer(wait)
		select {
		case o := <-answer:
			t.Stop()
			if o.err != nil {
				m.release(at)
				return nil, opError("dial", network, netAddr(network, to), os.NewSyscallError("connect", o.err))
			}
			return o.s, nil
		case <-ctx.Done():
			t.Stop()
			m.release(at)
			return nil, opError("dial", network, netAddr(network, to), ctx.Err())
		case <-t.C:
		}
	}
}

// release makes the local port of a dialled connection available again.
func (m *memory) release(at netip.AddrPort) {
	m.mu.Lock()
	delete(m.streams, at)
	m.mu.Unlock()
}

// A pair is the result of connectStreams: the dialling end of the connection, or an error.
type pair struct {
	local *stream
	err   error
}

// connectStreams creates both ends of a connection and passes the accepting end to the listener. The result has the
// error ECONNREFUSED if there is no listener or its queue is full.
func (m *memory) connectStreams(from, to netip.AddrPort) pair {
	m.mu.Lock()
	l := m.listeners[to]
	m.mu.Unlock()
	if l == nil {
		return pair{err: syscall.ECONNREFUSED}
	}
	a, b := m.newStream(from, to), m.newStream(to, from)
	a.other, b.other = b, a
	select {
	case l.in <- b:
		return pair{local: a}
	default:
		return pair{err: syscall.ECONNREFUSED}
	}
}

// sendReliably sends a packet of the given size in bytes over the link l, and calls arrived when the packet arrives. It sends a
// lost packet again after the timeout rto, and then after doubled timeouts, until the channel stop is closed.
func (m *memory) sendReliably(l *Link, f flow, size int, rto time.Duration, stop <-chan struct{}, arrived func()) {
	if l.send(f, size, arrived) {
		return
	}
	l.clock.schedule(time.Now().Add(rto), func() {
		select {
		case <-stop:
		default:
			m.sendReliably(l, f, size, min(2*rto, maxRTO), stop, arrived)
		}
	})
}

// transmit sends one segment to the other end. If data is nil, it sends the end of the stream. It stops retransmitting when the
// channel stop is closed.
func (s *stream) transmit(data []byte, stop <-chan struct{}) {
	s.mu.Lock()
	n := s.sent
	s.sent++
	s.mu.Unlock()
	to := s.other
	s.m.sendReliably(s.m.link(s.local.Addr(), s.peer.Addr()), flow{s.local, s.peer, protoTCP}, len(data), minRTO, stop, func() { to.deliver(n, data) })
}

// deliver processes segment number n, which has arrived. It appends all segments that are now in order to the received data.
func (s *stream) deliver(n int, data []byte) {
	select {
	case <-s.closed:
		return // Close has sent the end of the stream to the peer
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late[n] = data
	for {
		data, ok := s.late[s.next]
		if !ok || s.err != nil {
			break
		}
		delete(s.late, s.next)
		s.next++
		if data == nil {
			s.err = io.EOF
		}
		s.buf = append(s.buf, data...)
	}
	close(s.more)
	s.more = make(chan struct{})
}

// Read implements net.Conn. It returns io.EOF after the data that the other end sent before its Close.
func (s *stream) Read(b []byte) (int, error) {
	for {
		if err := s.checkOpen("read", &s.read); err != nil {
			return 0, err
		}
		s.mu.Lock()
		if len(s.buf) > 0 || len(b) == 0 {
			n := copy(b, s.buf)
			s.buf = s.buf[n:]
			s.mu.Unlock()
			return n, nil
		}
		err, more := s.err, s.more
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		select {
		case <-more:
		case <-s.closed:
		case <-s.read.Passed():
		}
	}
}

// Write implements net.Conn. It never blocks, and returns an error if the other end is closed.
func (s *stream) Write(b []byte) (int, error) {
	if err := s.checkOpen("write", &s.write); err != nil {
		return 0, err
	}
	select {
	case <-s.other.closed:
		return 0, s.wrapError("write", os.NewSyscallError("write", syscall.EPIPE))
	default:
	}
	for p := b; len(p) > 0; {
		n := min(len(p), maxSegmentSize)
		s.transmit(append([]byte(nil), p[:n]...), s.closed)
		p = p[n:]
	}
	return len(b), nil
}

// Close implements net.Conn. It sends the end of the stream to the other end, after all data.
func (s *stream) Close() error {
	return s.closeOnce(func() {
		s.transmit(nil, s.other.closed)
		s.m.release(s.local)
	})
}

// A listener accepts TCP connections in a memory network.
type listener struct {
	m      *memory
	at     netip.AddrPort // address of the listener
	in     chan *stream   // connections that Accept has not returned yet
	closed chan struct{}  // closed by Close
	close  sync.Once      // makes further calls of Close return an error
}

// listen implements [backend]. It opens a TCP listener at the address at, and chooses a port if that of the address is 0.
func (m *memory) listen(_ *Host, network string, at netip.AddrPort) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if at.Port() == 0 {
		at, err = m.freePort(at.Addr())
	} else if m.listeners[at] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, opError("listen", network, netAddr(network, at), err)
	}
	l := &listener{m: m, at: at, in: make(chan *stream, queueCapacity), closed: make(chan struct{})}
	m.listeners[at] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case s := <-l.in:
		return s, nil
	case <-l.closed:
		return nil, opError("accept", "tcp", l.Addr(), net.ErrClosed)
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// Close implements net.Listener. A second call returns net.ErrClosed.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		err = nil
		close(l.closed)
		l.m.mu.Lock()
		delete(l.m.listeners, l.at)
		l.m.mu.Unlock()
	})
	return err
}
