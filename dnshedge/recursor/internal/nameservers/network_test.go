package nameservers

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/deadline"
)

const ms = time.Millisecond

// network has servers in memory. It must be made in a synctest bubble.
type network struct {
	*testing.T
	start time.Time

	mu      sync.Mutex // guards the fields below
	servers map[netip.AddrPort]handler
	log     []sent
	open    int
	most    int // open at a time

	refuse func(network string, to netip.AddrPort) error // may sleep; set while there are no queries
}

// handler returns the replies to a query, or none for no answer. The message is a copy.
type handler func(q sent) []reply

// reply is a message that a server sends some time after the query.
type reply struct {
	*dns.Msg
	after time.Duration
}

// sent is a query to a server.
type sent struct {
	*dns.Msg
	at   time.Duration // since the network began
	to   netip.AddrPort
	conn int // the number of the socket
	tcp  bool
}

// inBubble runs f with a network, in fake time.
func inBubble(t *testing.T, f func(n *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&network{T: t, start: time.Now(), servers: make(map[netip.AddrPort]handler)})
	})
}

// newPool returns a Pool that sends its queries in the network.
func (n *network) newPool(conf Config) *Pool {
	conf.Dialer = n
	f := NewPool(conf)
	n.Cleanup(f.Close)
	return f
}

// serve adds a server at port 53 of an address.
func (n *network) serve(addr string, h handler) netip.AddrPort {
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), 53)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[at] = h
	return at
}

// answerAfter answers after a while, over UDP and TCP.
func answerAfter(after time.Duration) handler {
	return func(q sent) []reply { return []reply{{new(dns.Msg).SetReply(q.Msg), after}} }
}

// respondAfter answers with an RCODE after a while.
func respondAfter(rcode int, after time.Duration) handler {
	return func(q sent) []reply { return []reply{{new(dns.Msg).SetRcode(q.Msg, rcode), after}} }
}

func dead(sent) []reply { return nil }

// serveBoth returns an IPv4 and an IPv6 server, which have answered.
func (n *network) serveBoth(f *Pool) (four, six netip.AddrPort) {
	four, six = n.serve("192.0.2.1", answerAfter(10*ms)), n.serve("2001:db8::1", answerAfter(300*ms))
	for _, at := range []netip.AddrPort{four, six} {
		_, _, err := n.ask(f, newTask(at))
		require.NoError(n, err)
	}
	return four, six
}

// queries returns all queries so far.
func (n *network) queries() []sent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]sent(nil), n.log...)
}

func (n *network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to := netip.MustParseAddrPort(address)
	if n.refuse != nil {
		if err := n.refuse(network, to); err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", err)}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if network == "tcp" && n.servers[to] == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	n.open++
	n.most = max(n.most, n.open)
	return &socket{network: n, number: len(n.log), to: to, tcp: network == "tcp", in: make(chan []byte, 64), closed: make(chan struct{})}, nil
}

// socket is a connected socket of the network.
type socket struct {
	network *network
	number  int
	to      netip.AddrPort
	tcp     bool
	in      chan []byte
	rest    []byte // unread rest of a TCP segment
	dead    deadline.Deadline
	once    sync.Once
	closed  chan struct{}
}

func (s *socket) Write(b []byte) (int, error) {
	select {
	case <-s.dead.Passed():
		return 0, os.ErrDeadlineExceeded // as a socket of package net
	default:
	}
	n := s.network
	m := new(dns.Msg)
	body := b
	if s.tcp {
		body = b[2:]
	}
	if err := m.Unpack(body); err != nil {
		n.Errorf("malformed query: %v", err)
		return 0, err
	}
	n.mu.Lock()
	q := sent{m, time.Since(n.start), s.to, s.number, s.tcp}
	n.log = append(n.log, q)
	h := n.servers[s.to]
	n.mu.Unlock()
	if h == nil {
		return len(b), nil
	}
	q.Msg = m.Copy()
	for _, r := range h(q) {
		out, err := r.Pack()
		if err != nil {
			n.Errorf("malformed response: %v", err)
			continue
		}
		if s.tcp {
			out = append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)
		}
		time.AfterFunc(r.after, func() {
			select {
			case s.in <- out:
			default:
			}
		})
	}
	return len(b), nil
}

func (s *socket) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		select {
		case <-s.dead.Passed():
			return 0, &net.OpError{Op: "read", Net: "udp", Err: os.ErrDeadlineExceeded}
		default:
		}
		select {
		case s.rest = <-s.in:
		case <-s.dead.Passed():
		case <-s.closed:
			return 0, net.ErrClosed
		}
	}
	k := copy(b, s.rest)
	s.rest = s.rest[k:]
	if !s.tcp {
		s.rest = nil
	}
	return k, nil
}

func (s *socket) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.network.mu.Lock()
		s.network.open--
		s.network.mu.Unlock()
	})
	return nil
}

func (s *socket) LocalAddr() net.Addr                { return &net.UDPAddr{} }
func (s *socket) RemoteAddr() net.Addr               { return net.UDPAddrFromAddrPort(s.to) }
func (s *socket) SetDeadline(t time.Time) error      { s.dead.Set(t); return nil }
func (s *socket) SetReadDeadline(t time.Time) error  { return s.SetDeadline(t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return nil }
