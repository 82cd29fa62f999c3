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

// A networkConfig configures a simulated network in memory, over which real HTTP or gRPC requests are sent. The zero
// value is a network without delay for HTTP/1.1.
type networkConfig struct {
	rtts   []time.Duration // round-trip times between client and server; episodes use them in turn
	tls    bool            // HTTP is HTTP/2 over TLS
	stream bool            // the server sends the header of a response at once, and the body after the latency

	// replicas is the number of replicas of the server, which share a name. Clients dial the first replica. It does not
	// answer for the duration pause, once in every period.
	replicas           int
	pause, pausePeriod time.Duration
	randomReplica      bool // each attempt goes to a random replica
	rotatesReplicas    bool // each lookup of the name has a different replica first
	unreachable        bool // the second replica cannot be reached

	// freeze is the number of requests of each episode that are answered before the client's first connection is
	// frozen. The other requests are sent after that. 0 means that the connection is not frozen.
	freeze int
}

// A serverLocation is the network location of a strategy's server: a loopback socket, or hosts of a simulated network.
type serverLocation struct {
	config    *networkConfig
	addr      string // that clients dial
	listeners []net.Listener

	// Of a simulated network; nil for a loopback socket.
	net           *netsim.Network
	server, trust *tls.Config
	replicas      []netip.Addr

	mu      sync.Mutex
	lookups int // lookups of the replicas
	dialled bool
	conns   []net.Conn // of clients
	open    context.Context
	end     context.CancelFunc // of open
}

func newLoopbackLocation() (*serverLocation, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &serverLocation{config: new(networkConfig), addr: ln.Addr().String(), listeners: []net.Listener{ln}}, nil
}

// The hosts of a simulated network, besides the replicas that have no name of their own.
const (
	clientHost = "client"
	detourHost = "detour"     // the client's other way to the server
	serverHost = dnstest.Name // the certificate's
)

// newSimulatedLocation builds the simulated network for one client and its server, and returns the location of the
// server. Clients are numbered by episode and use the round-trip times in turn. protocol is http or grpc. clock returns
// the time that determines when the server pauses.
func (l *networkConfig) newSimulatedLocation(protocol string, episode int, clock func() time.Duration) (*serverLocation, error) {
	hosts := []string{clientHost, detourHost, serverHost}
	for i := 1; i < l.replicas; i++ {
		hosts = append(hosts, fmt.Sprint("replica-", i))
	}
	n, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		return nil, err
	}
	s := &serverLocation{config: l, net: n, addr: net.JoinHostPort(serverHost, "443")}
	s.open, s.end = context.WithCancel(context.Background())
	if l.tls && protocol != "grpc" {
		s.server, s.trust = dnstest.Certificate()
		s.trust = s.trust.Clone()
		s.trust.ServerName = serverHost // of whichever replica
	}
	var way time.Duration
	if len(l.rtts) > 0 {
		way = l.rtts[episode%len(l.rtts)] / 2
	}
	for i, host := range hosts[2:] {
		gone := l.unreachable && i == 1
		back := netsim.Constant(way)
		if host == serverHost && l.pause > 0 {
			back = l.addPauses(back, clock)
		}
		for _, from := range []string{clientHost, detourHost} {
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

// addPauses returns the delay d of packets from the server, with the pauses of the server: a packet sent during a pause
// waits until its end. In every pausePeriod of clock there is one pause, after the first quarter.
func (l *networkConfig) addPauses(d netsim.Dist, clock func() time.Duration) netsim.Dist {
	return func(r *rand.Rand) time.Duration {
		at := clock()%l.pausePeriod - l.pausePeriod/4
		if at < 0 || at >= l.pause {
			return d(r)
		}
		return l.pause - at + d(r)
	}
}

// dialServer opens a connection to the server at addr over the simulated network. The first connection starts at the
// host named "client", and all later ones at the host "detour", so that freezeConnection stops only the first.
func (s *serverLocation) dialServer(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	first := !s.dialled
	s.dialled = true
	s.mu.Unlock()
	if s.config.rotatesReplicas && addr == s.addr {
		ips, _ := s.LookupNetIP(ctx, "ip", serverHost)
		addr = replicaAddress(ips[0])
	}
	if first {
		return s.newDialFunc(clientHost)(ctx, network, addr)
	}
	return s.newDialFunc(detourHost)(ctx, network, addr)
}

// newDialFunc returns a function that opens connections from a host of the simulated network. closeNetwork interrupts
// the function and closes the connections.
func (s *serverLocation) newDialFunc(host string) func(context.Context, string, string) (net.Conn, error) {
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

// freezeConnection drops all packets of the client's first connection, which gets no more answers and no error.
func (s *serverLocation) freezeConnection() {
	s.net.Set(clientHost, serverHost, netsim.Profile{BlackHole: true})
}

// LookupNetIP returns the addresses of all replicas. It makes a serverLocation a resolver for hedge.WithReplicas.
func (s *serverLocation) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if !s.config.rotatesReplicas {
		return s.replicas, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups++
	n := s.lookups % len(s.replicas)
	return slices.Concat(s.replicas[n:], s.replicas[:n]), nil
}

func replicaAddress(ip netip.Addr) string { return netip.AddrPortFrom(ip, 443).String() }

// closeNetwork closes the simulated network and all connections, which ends all requests in flight.
func (s *serverLocation) closeNetwork() {
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
