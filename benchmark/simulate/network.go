package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A network configures a simulated network in memory, over which a scenario sends real HTTP or gRPC requests. It determines
// the round-trip times, the replicas of the server, and their faults.
//
// The zero value is a network without delay, with HTTP/1.1 over it. It runs in real time, or in the fake time of
// testing/synctest, where its figures are exact.
type network struct {
	rtts   []time.Duration // between client and server; episodes take them in turn
	tls    bool            // HTTP is HTTP/2 over TLS
	stream bool            // the server sends its header at once, and its body when it has waited

	// The server's name stands for so many replicas, of which clients dial the
	// first. It answers nothing for pause, once in every period.
	replicas      int
	pause, period time.Duration
	random        bool // each attempt goes to any of them
	rotates       bool // each lookup of the name has another replica first
	gone          bool // the second replica cannot be reached

	// freeze is how many requests of each episode are answered before the others
	// are sent, under which the client's first connection goes dead; 0: it does not.
	freeze int
}

// A site is the place of a contender's server: its address, its listeners and its TLS configurations. It also opens the
// connections of clients. A site is a loopback socket, or the simulated network of a scenario.
type site struct {
	config    *network
	addr      string // that clients dial
	listeners []net.Listener

	// Of a simulated network; nil for a loopback socket.
	net           *netsim.Network
	server, trust *tls.Config
	replicas      []netip.Addr

	mu      sync.Mutex
	asked   int // for the replicas
	dialled bool
	conns   []net.Conn // of clients
	open    context.Context
	end     context.CancelFunc // of open
}

// newLoopbackSite returns a site that listens on a free port of 127.0.0.1, a real socket.
func newLoopbackSite() (*site, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &site{config: new(network), addr: ln.Addr().String(), listeners: []net.Listener{ln}}, nil
}

// The hosts of a simulated network, besides the replicas that have no name of their own.
const (
	client = "client"
	detour = "detour"     // the client's other way to the server
	server = dnstest.Name // the certificate's
)

// newSite builds the simulated network for one episode, and listens on the host of each replica. protocol is
// http or grpc. The number of the episode selects the round-trip time. clock is the contender's stopwatch, which
// determines when replicas pause.
func (l *network) newSite(protocol string, episode int, clock func() time.Duration) (*site, error) {
	hosts := []string{client, detour, server}
	for i := 1; i < l.replicas; i++ {
		hosts = append(hosts, fmt.Sprint("replica-", i))
	}
	n, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		return nil, err
	}
	s := &site{config: l, net: n, addr: net.JoinHostPort(server, "443")}
	s.open, s.end = context.WithCancel(context.Background())
	if l.tls && protocol != "grpc" {
		s.server, s.trust = dnstest.Certificate()
		s.trust = s.trust.Clone()
		s.trust.ServerName = server // of whichever replica
	}
	var way time.Duration
	if len(l.rtts) > 0 {
		way = l.rtts[episode%len(l.rtts)] / 2
	}
	for i, host := range hosts[2:] {
		gone := l.gone && i == 1
		back := netsim.Constant(way)
		if host == server && l.pause > 0 {
			back = l.addPauses(back, clock)
		}
		for _, from := range []string{client, detour} {
			n.Link(from, host).Set(netsim.Profile{Delay: netsim.Constant(way), BlackHole: gone})
			n.Link(host, from).Set(netsim.Profile{Delay: back})
		}
		s.replicas = append(s.replicas, n.Host(host).Addr())
		ln, err := n.Host(host).Listen("tcp", ":443")
		if err != nil {
			return nil, err
		}
		s.listeners = append(s.listeners, ln)
	}
	return s, nil
}

// addPauses returns the delay distribution d of a link, with the pauses of the server added. A packet sent during a
// pause waits until the pause ends. Each period has one pause, after its first quarter. clock returns the time that the
// contender has run.
func (l *network) addPauses(d netsim.Dist, clock func() time.Duration) netsim.Dist {
	return func(r *rand.Rand) time.Duration {
		at := clock()%l.period - l.period/4
		if at < 0 || at >= l.pause {
			return d(r)
		}
		return l.pause - at + d(r)
	}
}

// dialServer connects a client to the server at addr, over the simulated network. The first connection starts at the
// host named client, and all later ones start at the host named detour. freezeConnection therefore stops the first
// connection alone.
func (s *site) dialServer(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	first := !s.dialled
	s.dialled = true
	s.mu.Unlock()
	if s.config.rotates && addr == s.addr {
		ips, _ := s.LookupNetIP(ctx, "ip", server)
		addr = replicaAddress(ips[0])
	}
	if first {
		return s.dialerFrom(client)(ctx, network, addr)
	}
	return s.dialerFrom(detour)(ctx, network, addr)
}

// dialerFrom returns a dial function whose connections start at the given host of the simulated network. closeNetwork
// interrupts its dials and closes its connections.
func (s *site) dialerFrom(host string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, stop := context.WithCancel(ctx)
		defer context.AfterFunc(s.open, stop)()
		conn, err := s.net.Host(host).DialContext(ctx, network, addr)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.conns = append(s.conns, conn)
		}
		return conn, err
	}
}

// freezeConnection makes the simulated network drop all packets between the host named client and the server. The
// client's first connection starts at that host, so it goes dead without an error.
func (s *site) freezeConnection() { s.net.Set(client, server, netsim.Profile{BlackHole: true}) }

// LookupNetIP returns the addresses of all replicas, as a DNS lookup of the server's name would. With it, a site is the
// resolver that hedge.WithReplicas takes. If the network rotates, each lookup has another replica first.
func (s *site) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if !s.config.rotates {
		return s.replicas, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	n := s.asked % len(s.replicas)
	return slices.Concat(s.replicas[n:], s.replicas[:n]), nil
}

// replicaAddress returns the address host:port at which the replica with the given IP address listens. The port is 443.
func replicaAddress(ip netip.Addr) string { return netip.AddrPortFrom(ip, 443).String() }

// closeNetwork closes the simulated network and all connections over it, so that no request waits for an answer any
// longer. It does nothing for a loopback socket.
func (s *site) closeNetwork() {
	if s.net == nil {
		return
	}
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close() // mostly, the client has done so
	}
	_ = s.net.Close() // one in memory cannot fail
}
