package netsim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/internal/deadline"
)

const (
	ephemeral = 32768 // the first port given to those who do not ask for one
	inbox     = 512   // datagrams that a socket keeps for its reader; more are lost
	segment   = 1460  // bytes of a stream in one packet
	synRetry  = time.Second
	minRTO    = 200 * time.Millisecond
	maxRTO    = 8 * time.Second
)

// NewMemory returns a network inside this process.
//
// Datagrams behave as the kernel's do, refused ones included. Streams keep their
// promise by sending lost segments again after 200 ms, and twice that the next
// time, up to 8 s; they have no window, so that a Write never waits. Made inside
// a testing/synctest bubble, the network belongs to that bubble.
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

	mu        sync.Mutex // guards the fields below
	next      map[netip.Addr]uint16
	datagrams map[netip.AddrPort]*datagram
	listeners map[netip.AddrPort]*listener
	streams   map[netip.AddrPort]bool // ports of dialled streams
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

func (m *memory) index(a netip.Addr) int {
	for _, h := range m.net.hosts {
		if h.addr == a {
			return h.id
		}
	}
	return -1
}

// port returns a free port of the host. The caller holds m.mu.
func (m *memory) port(a netip.Addr) (netip.AddrPort, error) {
	for range 1<<16 - ephemeral {
		p := max(m.next[a], ephemeral)
		m.next[a] = p + 1 // wraps to 0, which max lifts
		ap := netip.AddrPortFrom(a, p)
		if m.datagrams[ap] == nil && m.listeners[ap] == nil && !m.streams[ap] {
			return ap, nil
		}
	}
	return netip.AddrPort{}, syscall.EADDRNOTAVAIL
}

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
		at, err := m.port(h.addr)
		if err != nil {
			return nil, opError("dial", network, netAddr(network, to), err)
		}
		return m.bind(at, to), nil
	}
	return m.dialStream(ctx, h, network, to)
}

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

func netAddr(network string, a netip.AddrPort) net.Addr {
	if network[0] == 'u' {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}

// datagram is a UDP socket. It is connected if peer is valid.
type datagram struct {
	m          *memory
	local      netip.AddrPort
	peer       netip.AddrPort
	in         chan letter
	closed     chan struct{}
	close      sync.Once
	read, sent deadline.Deadline
}

type letter struct {
	data []byte
	from netip.AddrPort
	err  error
}

var (
	_ net.Conn       = (*datagram)(nil)
	_ net.PacketConn = (*datagram)(nil)
)

// bind makes a socket. The caller holds m.mu.
func (m *memory) bind(at, peer netip.AddrPort) *datagram {
	d := &datagram{m: m, local: at, peer: peer, in: make(chan letter, inbox), closed: make(chan struct{})}
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
	case <-d.sent.Passed():
		return 0, opError("write", "udp", d.LocalAddr(), os.ErrDeadlineExceeded)
	default:
	}
	l := d.m.link(d.local.Addr(), to.Addr())
	if l == nil {
		return 0, opError("write", "udp", net.UDPAddrFromAddrPort(to), syscall.ENETUNREACH)
	}
	data := append([]byte(nil), b...)
	l.send(flow{d.local, to, protoUDP}, len(b), func() { d.m.arrive(letter{data: data, from: d.local}, to) })
	return len(b), nil
}

// arrive hands a datagram to the socket it is for, or sends word that there is none.
func (m *memory) arrive(l letter, to netip.AddrPort) {
	m.mu.Lock()
	d := m.datagrams[to]
	m.mu.Unlock()
	switch {
	case d == nil && l.err == nil:
		if back := m.link(to.Addr(), l.from.Addr()); back != nil {
			back.send(flow{to, l.from, 1}, 0, func() { m.arrive(letter{from: to, err: syscall.ECONNREFUSED}, l.from) })
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
		d.sent.Set(time.Time{})
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
func (d *datagram) SetWriteDeadline(t time.Time) error { return d.set(&d.sent, t) }

func (d *datagram) set(l *deadline.Deadline, t time.Time) error {
	select {
	case <-d.closed:
		return opError("set", "udp", d.LocalAddr(), net.ErrClosed)
	default:
		l.Set(t)
		return nil
	}
}

// listener accepts streams.
type listener struct {
	m      *memory
	at     netip.AddrPort
	in     chan *stream
	closed chan struct{}
	close  sync.Once
}

func (m *memory) listen(_ *Host, network string, at netip.AddrPort) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if at.Port() == 0 {
		at, err = m.port(at.Addr())
	} else if m.listeners[at] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, opError("listen", network, netAddr(network, at), err)
	}
	l := &listener{m: m, at: at, in: make(chan *stream, inbox), closed: make(chan struct{})}
	m.listeners[at] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case s := <-l.in:
		return s, nil
	case <-l.closed:
		return nil, opError("accept", "tcp", l.Addr(), net.ErrClosed)
	}
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

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

// stream is one end of a TCP connection.
type stream struct {
	m           *memory
	local, peer netip.AddrPort
	other       *stream
	closed      chan struct{}
	close       sync.Once
	read, write deadline.Deadline

	mu   sync.Mutex     // guards the fields below
	more chan struct{}  // closed when there is something to read
	buf  []byte         // arrived, in order
	err  error          // what comes after buf
	next int            // the segment that comes after buf
	late map[int][]byte // segments that overtook next; nil is the end of the stream
	sent int            // segments sent
}

var _ net.Conn = (*stream)(nil)

func (m *memory) newStream(local, peer netip.AddrPort) *stream {
	return &stream{m: m, local: local, peer: peer, closed: make(chan struct{}), more: make(chan struct{}), late: make(map[int][]byte)}
}

func (m *memory) dialStream(ctx context.Context, h *Host, network string, to netip.AddrPort) (net.Conn, error) {
	there, back := m.link(h.addr, to.Addr()), m.link(to.Addr(), h.addr)
	if there == nil {
		return nil, opError("dial", network, netAddr(network, to), syscall.ENETUNREACH)
	}
	m.mu.Lock()
	at, err := m.port(h.addr)
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
			o := m.accept(at, to)
			reply := func() { answer <- outcome{o.local, o.err} }
			m.persist(back, flow{to, at, protoTCP}, 0, minRTO, nil, reply)
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

func (m *memory) release(at netip.AddrPort) {
	m.mu.Lock()
	delete(m.streams, at)
	m.mu.Unlock()
}

type pair struct {
	local *stream
	err   error
}

// accept makes both ends of a connection, or refuses it.
func (m *memory) accept(from, to netip.AddrPort) pair {
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

// persist sends a packet until it arrives or stop is closed.
func (m *memory) persist(l *Link, f flow, size int, rto time.Duration, stop <-chan struct{}, arrived func()) {
	if l.send(f, size, arrived) {
		return
	}
	l.clock.at(time.Now().Add(rto), func() {
		select {
		case <-stop:
		default:
			m.persist(l, f, size, min(2*rto, maxRTO), stop, arrived)
		}
	})
}

// transmit sends one segment; nil is the end of the stream.
func (s *stream) transmit(data []byte, stop <-chan struct{}) {
	s.mu.Lock()
	n := s.sent
	s.sent++
	s.mu.Unlock()
	to := s.other
	s.m.persist(s.m.link(s.local.Addr(), s.peer.Addr()), flow{s.local, s.peer, protoTCP}, len(data), minRTO, stop, func() { to.deliver(n, data) })
}

func (s *stream) deliver(n int, data []byte) {
	select {
	case <-s.closed:
		return // the peer hears of it by the end of our own stream
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

func (s *stream) Read(b []byte) (int, error) {
	for {
		select {
		case <-s.closed:
			return 0, opError("read", "tcp", s.LocalAddr(), net.ErrClosed)
		case <-s.read.Passed():
			return 0, opError("read", "tcp", s.LocalAddr(), os.ErrDeadlineExceeded)
		default:
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

func (s *stream) Write(b []byte) (int, error) {
	select {
	case <-s.closed:
		return 0, opError("write", "tcp", s.LocalAddr(), net.ErrClosed)
	case <-s.other.closed:
		return 0, opError("write", "tcp", s.LocalAddr(), os.NewSyscallError("write", syscall.EPIPE))
	case <-s.write.Passed():
		return 0, opError("write", "tcp", s.LocalAddr(), os.ErrDeadlineExceeded)
	default:
	}
	for p := b; len(p) > 0; {
		n := min(len(p), segment)
		s.transmit(append([]byte(nil), p[:n]...), s.closed)
		p = p[n:]
	}
	return len(b), nil
}

func (s *stream) Close() error {
	err := net.ErrClosed
	s.close.Do(func() {
		err = nil
		close(s.closed)
		s.read.Set(time.Time{})
		s.write.Set(time.Time{})
		s.transmit(nil, s.other.closed)
		s.m.release(s.local)
	})
	return err
}

func (s *stream) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(s.local) }
func (s *stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.peer) }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
func (s *stream) SetReadDeadline(t time.Time) error  { return s.set(&s.read, t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.set(&s.write, t) }

func (s *stream) set(l *deadline.Deadline, t time.Time) error {
	select {
	case <-s.closed:
		return opError("set", "tcp", s.LocalAddr(), net.ErrClosed)
	default:
		l.Set(t)
		return nil
	}
}
