package reclab

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/netsim"
)

// An impairment determines the loss and delay of packets to and from the simulated servers. All shares are from 0 to 1.
type impairment struct {
	loss   float64 // share of the exchanges that are lost, independently
	jitter float64 // standard deviation of the logarithm of round-trip times
	spikes float64 // share of the exchanges that take 40 to 300 ms longer
	bursts float64 // share of the seconds in which a server loses all queries
}

// A network runs the servers of a simulated internet for one resolver. The loss and delay of the n-th exchange, a query
// and its response, with a server are the same for all resolvers.
type network struct {
	internet *internet
	impairment
	seed  uint64
	start time.Time

	udp, tcp atomic.Int64 // queries

	mu        sync.Mutex         // guards exchanges
	exchanges map[*server]uint64 // so far
}

func newNetwork(n *internet, d impairment, seed uint64) *network {
	return &network{internet: n, impairment: d, seed: seed, start: time.Now(), exchanges: make(map[*server]uint64)}
}

// drawRoundTripTime draws the time between a query to server s and its response. It returns false if either is lost.
func (n *network) drawRoundTripTime(s *server) (time.Duration, bool) {
	n.mu.Lock()
	k := n.exchanges[s]
	n.exchanges[s]++
	n.mu.Unlock()
	ip := s.addr.As4()
	stream := n.seed<<32 ^ uint64(binary.BigEndian.Uint32(ip[:]))
	second := uint64(time.Since(n.start) / time.Second)
	if rand.New(rand.NewPCG(stream, 1<<63|second)).Float64() < n.bursts {
		return 0, false
	}
	rng := rand.New(rand.NewPCG(stream, k))
	if rng.Float64() < n.loss {
		return 0, false
	}
	ms := float64(s.rtt) / 1e6 * math.Exp(math.Abs(n.jitter*rng.NormFloat64()))
	if rng.Float64() < n.spikes {
		ms += 40 + 260*rng.Float64()
	}
	return time.Duration(ms * 1e6), true
}

// handleUDPQuery answers a query to the server with address to: it calls send with the response after the round-trip
// time. It does not call send if the query or the response is lost.
func (n *network) handleUDPQuery(to netip.Addr, query []byte, send func(response []byte)) {
	n.udp.Add(1)
	s := n.internet.servers[to]
	if s == nil || s.fault == dead {
		return
	}
	took, ok := n.drawRoundTripTime(s)
	if !ok {
		return
	}
	if b := n.internet.answerQuery(s, query, false); b != nil {
		time.AfterFunc(took, func() { send(b) })
	}
}

// serveTCPConn answers queries on c until the connection ends. handshake is added to the latency of the first answer.
func (n *network) serveTCPConn(c net.Conn, to netip.Addr, handshake time.Duration) {
	defer c.Close()
	s := n.internet.servers[to]
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		n.tcp.Add(1)
		b := n.internet.answerQuery(s, query, true)
		if b == nil {
			continue
		}
		time.Sleep(handshake + s.rtt)
		handshake = 0
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

// listenAndServe starts the servers of the internet in a network namespace, at port 53 of all addresses. stop ends the
// servers. Their TCP connections end when the resolver, the only client, ends.
func (n *network) listenAndServe(space *netsim.Namespace) (stop func(), err error) {
	var pc net.PacketConn
	var ln net.Listener
	err = space.Do(func() (err error) {
		if pc, err = net.ListenPacket("udp4", ":53"); err != nil {
			return err
		}
		if err = pc.(*net.UDPConn).SetReadBuffer(4 << 20); err == nil {
			ln, err = net.Listen("tcp4", ":53")
		}
		if err != nil {
			_ = pc.Close()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() { _ = n.serveUDP(pc) }()
	go func() { _ = n.serveTCP(ln) }()
	return func() {
		_ = pc.Close()
		_ = ln.Close()
	}, nil
}

// serveUDP answers the queries to any server that arrive at pc, until pc is closed.
func (n *network) serveUDP(pc net.PacketConn) error {
	c := ipv4.NewPacketConn(pc)
	if err := c.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	b := make([]byte, 4096)
	for {
		k, control, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		to, ok := netip.AddrFromSlice(control.Dst.To4())
		if !ok {
			return fmt.Errorf("reclab: datagram from %v without a destination", from)
		}
		n.handleUDPQuery(to, b[:k], func(response []byte) {
			_, _ = c.WriteTo(response, &ipv4.ControlMessage{Src: to.AsSlice()}, from) // the client may be gone
		})
	}
}

// serveTCP answers the queries to any server on connections that ln accepts, until ln is closed.
func (n *network) serveTCP(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		to := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		var rtt time.Duration // of the handshake, which the kernel does without a delay
		if s := n.internet.servers[to]; s != nil {
			rtt = s.rtt
		}
		go n.serveTCPConn(c, to, rtt)
	}
}

// DialContext opens a connection in memory to a server, for resolvers in this process.
func (n *network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: newSocketAddr(network, to), Err: err}
	}
	if !ServerNetwork.Contains(to.Addr()) || to.Port() != 53 {
		return fail(syscall.ENETUNREACH)
	}
	near, far := net.Pipe()
	conn := pipeConn{Conn: near, protocol: network, to: to}
	if network[:3] == "udp" {
		return &pipePacketConn{conn, n, far}, nil
	}
	s := n.internet.servers[to.Addr()]
	if s == nil || s.fault == dead {
		<-ctx.Done()
		return fail(ctx.Err())
	}
	if err := lab.SleepContext(ctx, s.rtt); err != nil {
		return fail(err)
	}
	go n.serveTCPConn(far, to.Addr(), 0)
	return &conn, nil
}

// clientAddress is the address of all clients in memory.
var clientAddress = netip.MustParseAddrPort("192.0.2.53:49152")

func newSocketAddr(network string, a netip.AddrPort) net.Addr {
	if network[:3] == "udp" {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}

// A pipeConn is the client's end of a connection in memory to a simulated server.
type pipeConn struct {
	net.Conn
	protocol string // udp or tcp
	to       netip.AddrPort
}

func (c *pipeConn) LocalAddr() net.Addr  { return newSocketAddr(c.protocol, clientAddress) }
func (c *pipeConn) RemoteAddr() net.Addr { return newSocketAddr(c.protocol, c.to) }

// A pipePacketConn is a UDP socket in memory that is connected to a simulated server. It implements net.PacketConn, by
// which package dns recognizes a UDP socket.
type pipePacketConn struct {
	pipeConn
	servers *network
	far     net.Conn // the server's end of the pipe
}

func (d *pipePacketConn) Write(b []byte) (int, error) {
	d.servers.handleUDPQuery(d.to.Addr(), b, func(response []byte) { _, _ = d.far.Write(response) }) // fails after Close
	return len(b), nil
}

func (d *pipePacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := d.Read(b)
	return n, d.RemoteAddr(), err
}

func (d *pipePacketConn) WriteTo(b []byte, _ net.Addr) (int, error) { return d.Write(b) }
