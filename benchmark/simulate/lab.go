package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A lab is a simulated network in memory, and how its two ends behave. The zero
// value is a network without delay and HTTP/1.1 over it. A lab runs in real time,
// or under testing/synctest in fake time, where its figures are exact.
type lab struct {
	strategies []string // that take part, besides those that are for this scenario only

	rtts   []time.Duration // between client and server; episodes take them in turn
	tls    bool            // HTTP is HTTP/2 over TLS
	stream bool            // the server sends its header at once, and its body when it has waited

	// The server's name stands for so many replicas, of which clients dial the
	// first. It answers nothing for pause, once in every period.
	replicas      int
	pause, period time.Duration

	// freeze is how many requests of each episode are answered before the others
	// are sent, under which the client's first connection goes dead; 0: it does not.
	freeze int
}

func labScenarios() []scenario {
	usual := virtual.Lognormal(5*ms, 2*ms)
	return []scenario{{
		name: "stream", about: "the header comes at once and the first byte later, for 10 % of attempts by 200 ms, 30 callers; time to first byte",
		world: virtual.World{Workers: 30, Requests: 6000, Model: virtual.Late(usual, 0.10, 200*ms)}, sockets: []string{"http"},
		lab: &lab{
			strategies: []string{"none", "published", "hedge"},
			stream:     true,
		},
	}, {
		name: "frozen-h2", about: "a client's HTTP/2 connection goes dead under 4 callers, who give up after 300 ms; 1 ms to the server and back",
		world:   virtual.World{Workers: 4, Requests: 124, Episodes: 10, Model: usual, Timeout: 300 * ms},
		sockets: []string{"http", "grpc"}, parts: []part{last("frozen", 120)},
		lab: &lab{
			strategies: []string{"none", "static-10ms", "hedge"},
			rtts:       []time.Duration{ms}, tls: true, freeze: 120,
		},
	}, {
		name: "cold", about: "fresh clients, over TLS, 0.5 and 30 ms from a server that answers at once",
		world: virtual.World{Workers: 1, Requests: 6, Episodes: 40, Model: virtual.Constant(0, 0)}, sockets: []string{"http"},
		parts: []part{
			on("first-0.5ms", 0, first("", 1)), on("warm-0.5ms", 0, last("", 1)),
			on("first-30ms", 1, first("", 1)), on("warm-30ms", 1, last("", 1)),
		},
		lab: &lab{
			strategies: []string{"none", "hedge"},
			rtts:       []time.Duration{ms / 2, 30 * ms}, tls: true,
		},
	}, {
		name: "replica", about: "the replica that a client dials, of three, stops for 100 ms every 2 s, 200 requests/s",
		world: virtual.World{Rate: 200, Requests: 1200, Model: usual}, sockets: []string{"http"},
		lab: &lab{
			strategies: []string{"none", "hedge"},
			rtts:       []time.Duration{ms}, replicas: 3, pause: 100 * ms, period: 2 * sec,
		},
	}}
}

// last are the calls after the first n of their client.
func last(name string, n int32) part {
	return part{name: name, in: func(c virtual.Call) bool { return c.Index >= n }}
}

// on are the calls of p at the n-th round-trip time.
func on(name string, n int16, p part) part {
	return part{name: name, in: func(c virtual.Call) bool { return c.Host == n && p.in(c) }}
}

// A site is where a server listens, and how its clients get there.
type site struct {
	lab       *lab
	addr      string // that clients dial
	listeners []net.Listener

	// Of a lab; else nil.
	net           *netsim.Network
	server, trust *tls.Config
	replicas      []netip.Addr

	mu      sync.Mutex
	dialled bool
	conns   []net.Conn // of clients
	open    context.Context
	end     context.CancelFunc // of open
}

// loopbackSite is a real socket.
func loopbackSite() (*site, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &site{lab: new(lab), addr: ln.Addr().String(), listeners: []net.Listener{ln}}, nil
}

// The hosts of a lab's network, besides the replicas that have no name of their own.
const (
	client = "client"
	detour = "detour"     // the client's other way to the server
	server = dnstest.Name // the certificate's
)

// site builds the lab for the given protocol and episode. The clock is the contender's.
func (l *lab) site(protocol string, episode int, clock func() time.Duration) (*site, error) {
	hosts := []string{client, detour, server}
	for i := 1; i < l.replicas; i++ {
		hosts = append(hosts, fmt.Sprint("replica-", i))
	}
	n, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		return nil, err
	}
	s := &site{lab: l, net: n, addr: net.JoinHostPort(server, "443")}
	s.open, s.end = context.WithCancel(context.Background())
	if l.tls && protocol != "grpc" {
		s.server, s.trust = dnstest.Certificate()
	}
	var way time.Duration
	if len(l.rtts) > 0 {
		way = l.rtts[episode%len(l.rtts)] / 2
	}
	for _, host := range hosts[2:] {
		back := netsim.Constant(way)
		if host == server && l.pause > 0 {
			back = l.pauses(back, clock)
		}
		for _, from := range []string{client, detour} {
			n.Link(from, host).Set(netsim.Profile{Delay: netsim.Constant(way)})
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

// pauses returns d, and during the pause of each period d after what is left of it.
func (l *lab) pauses(d netsim.Dist, clock func() time.Duration) netsim.Dist {
	return func(r *rand.Rand) time.Duration {
		at := clock()%l.period - l.period/4
		if at < 0 || at >= l.pause {
			return d(r)
		}
		return l.pause - at + d(r)
	}
}

// dial connects a client, from the host client the first time and from detour later.
func (s *site) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	first := !s.dialled
	s.dialled = true
	s.mu.Unlock()
	if first {
		return s.from(client)(ctx, network, addr)
	}
	return s.from(detour)(ctx, network, addr)
}

// from returns what dials from a host.
func (s *site) from(host string) func(context.Context, string, string) (net.Conn, error) {
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

// freeze stops the client's first connection.
func (s *site) freeze() { s.net.Set(client, server, netsim.Profile{BlackHole: true}) }

// LookupNetIP returns the replicas, for hedge.WithReplicas.
func (s *site) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return s.replicas, nil
}

// close ends a lab's network, and with it whatever still waits for an answer.
func (s *site) close() {
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
