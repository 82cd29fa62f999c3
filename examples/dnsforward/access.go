package main

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// localNetworks are the clients that are served unless -allow says otherwise: this
// machine and private networks. A forwarder that serves everybody is soon used to flood
// others with answers.
var localNetworks = prefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
	"::1/128", "fc00::/7", "fe80::/10")

func prefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// access says who is served, and how much. It is safe for concurrent use.
type access struct {
	allowed   []netip.Prefix
	perSecond float64 // questions of one client; 0 is no limit

	mu        sync.Mutex // guards the fields below
	limits    map[netip.Addr]*rate.Limiter
	oldLimits map[netip.Addr]*rate.Limiter // of clients that were not seen since limits was new
}

// maxLimits bounds the clients that are remembered, to twice as many. Who sends from
// more addresses than that forges them, and is given a new limit now and then.
const maxLimits = 1 << 15

// allows reports whether a client may ask.
func (a *access) allows(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(a.allowed, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// take reports whether a client may ask another question now.
func (a *access) take(ip netip.Addr) bool {
	return a.perSecond == 0 || a.limit(ip).Allow()
}

// maxWait is how long a question over a connection may wait, which holds up the end.
const maxWait = time.Second

// wait returns how long a client has to wait before it may ask another question, which
// it then may, unless that is longer than maxWait.
func (a *access) wait(ip netip.Addr) time.Duration {
	if a.perSecond == 0 {
		return 0
	}
	r := a.limit(ip).Reserve()
	d := r.Delay()
	if d > maxWait {
		r.Cancel()
	}
	return d
}

// limit returns the limiter of a client.
func (a *access) limit(ip netip.Addr) *rate.Limiter {
	ip = whole(ip)
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.limits[ip]
	if l == nil {
		if l = a.oldLimits[ip]; l == nil {
			l = rate.NewLimiter(rate.Limit(a.perSecond), max(1, int(a.perSecond)))
		}
		if a.limits == nil || len(a.limits) >= maxLimits {
			a.limits, a.oldLimits = make(map[netip.Addr]*rate.Limiter), a.limits
		}
		a.limits[ip] = l
	}
	return l
}

// whole returns what counts as one client: an IPv4 address, or an IPv6 network of 64 bits,
// of which a client has all addresses.
func whole(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// client returns the address of a client.
func client(at net.Addr) netip.Addr {
	switch at := at.(type) {
	case *net.UDPAddr:
		return at.AddrPort().Addr()
	case *net.TCPAddr:
		return at.AddrPort().Addr()
	}
	return netip.Addr{} // which nothing allows
}

// guard is a listener that accepts only clients that may ask, and a bounded number of
// connections of all of them and of each. It closes others at once.
type guard struct {
	net.Listener
	access      *access
	conns, each int // limits

	mu   sync.Mutex // guards the fields below
	all  int
	from map[netip.Addr]int
}

func (g *guard) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		ip := client(c.RemoteAddr())
		if one := whole(ip); g.access.allows(ip) && g.enter(one) {
			return &guarded{Conn: c, leave: sync.OnceFunc(func() { g.leave(one) })}, nil
		}
		_ = c.Close()
	}
}

func (g *guard) enter(ip netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= g.conns || g.from[ip] >= g.each {
		return false
	}
	if g.from == nil {
		g.from = make(map[netip.Addr]int)
	}
	g.all++
	g.from[ip]++
	return true
}

func (g *guard) leave(ip netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.from[ip]--; g.from[ip] == 0 {
		delete(g.from, ip)
	}
}

// guarded is a connection that counts until it is closed.
type guarded struct {
	net.Conn
	leave func()
}

func (c *guarded) Close() error {
	c.leave()
	return c.Conn.Close()
}
