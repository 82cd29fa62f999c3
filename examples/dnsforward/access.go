package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/gohedge/hedge/internal/connlimit"
)

// localNetworks are the clients that are served unless -allow says otherwise: this
// machine and private networks. A forwarder that serves everybody is soon used to flood
// others with answers.
var localNetworks = mustParsePrefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
	"::1/128", "fc00::/7", "fe80::/10")

func mustParsePrefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// accessControl says who is served, and how much. It is safe for concurrent use.
type accessControl struct {
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
func (a *accessControl) isAllowed(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(a.allowed, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// take reports whether a client may ask another question now.
func (a *accessControl) allowQuestion(ip netip.Addr) bool {
	return a.perSecond == 0 || a.limiterFor(ip).Allow()
}

// maxWait is how long a question over a connection may wait, which holds up the end.
const maxWait = time.Second

// wait returns how long a client has to wait before it may ask another question, which
// it then may, unless that is longer than maxWait.
func (a *accessControl) reserveQuestion(ip netip.Addr) time.Duration {
	if a.perSecond == 0 {
		return 0
	}
	r := a.limiterFor(ip).Reserve()
	d := r.Delay()
	if d > maxWait {
		r.Cancel()
	}
	return d
}

// limit returns the limiter of a client.
func (a *accessControl) limiterFor(ip netip.Addr) *rate.Limiter {
	ip = clientNetwork(ip)
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

// clientNetwork returns what counts as one client: an IPv4 address, or an IPv6 network of 64 bits,
// of which a client has all addresses.
func clientNetwork(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// clientAddress returns the address of a client.
func clientAddress(at net.Addr) netip.Addr {
	switch at := at.(type) {
	case *net.UDPAddr:
		return at.AddrPort().Addr()
	case *net.TCPAddr:
		return at.AddrPort().Addr()
	}
	return netip.Addr{} // which nothing allows
}

// guardedListener is a listener that accepts only clients that may ask, and a bounded number of connections of each. It closes others at
// once. If it has seats, they bound the connections of all clients; else who accepts does.
type guardedListener struct {
	net.Listener
	access  *accessControl
	conns   clientCounter
	slots   *connlimit.Limiter
	closing chan struct{} // closed by Close
	close   sync.Once
}

func (g *guardedListener) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		ip := clientAddress(conn.RemoteAddr())
		one := clientNetwork(ip)
		if g.access.isAllowed(ip) && g.conns.tryAdd(one) {
			c := &guardedConn{Conn: conn}
			slot, ok := g.slots.AcquireSlot(one, g.closing, c.giveUpSlot)
			c.release = sync.OnceFunc(func() {
				slot.Release()
				g.conns.remove(one)
			})
			if c.slot = slot; ok {
				return c, nil
			}
			c.release()
		}
		_ = conn.Close()
	}
}

func (g *guardedListener) Close() error {
	g.close.Do(func() { close(g.closing) })
	return g.Listener.Close()
}

// clientCounter bounds what is under way at a time. It is safe for concurrent use.
type clientCounter struct {
	each int // limit for one client
	all  int // limit for all clients; 0: none

	mu       sync.Mutex // guards the fields below
	n        int
	byClient map[netip.Addr]int
}

// enter counts one more for a client, or reports false if that is too many.
func (c *clientCounter) tryAdd(ip netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byClient[ip] >= c.each || c.all > 0 && c.n >= c.all {
		return false
	}
	if c.byClient == nil {
		c.byClient = make(map[netip.Addr]int)
	}
	c.byClient[ip]++
	c.n++
	return true
}

// leave ends the counting of one that has entered.
func (c *clientCounter) remove(ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.byClient[ip]--; c.byClient[ip] == 0 {
		delete(c.byClient, ip)
	}
}

// guardedConn is a connection that counts until it is closed.
type guardedConn struct {
	net.Conn
	release             func()
	slot                *connlimit.Slot
	busy                atomic.Bool // requests are under way
	closesAfterResponse atomic.Bool // the next answer is the last one
}

func (c *guardedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// CloseWrite ends what is written, so that the connection can be drained before it is closed.
func (c *guardedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// leave is called when the connection has to give up its seat.
func (c *guardedConn) giveUpSlot(inUse bool) {
	c.closesAfterResponse.Store(true)
	if !inUse {
		go c.Close()
	}
}

// guardedConnOf returns the connection below TLS.
func guardedConnOf(c net.Conn) *guardedConn { return c.(*tls.Conn).NetConn().(*guardedConn) }

// lastWriteTime is how long an HTTP connection that has to give up its seat stays open after its last answer.
const lastWriteTime = time.Second

// trackConnUse is told by an HTTP server what becomes of its connections.
func trackConnUse(conn net.Conn, is http.ConnState) {
	c := guardedConnOf(conn)
	switch is {
	case http.StateActive:
		if !c.busy.Swap(true) {
			c.slot.BeginUse()
		}
	case http.StateIdle:
		if c.busy.Swap(false) {
			c.slot.EndUse()
		}
		if c.closesAfterResponse.Load() { // the last answer may not be written yet
			time.AfterFunc(lastWriteTime, func() { _ = c.Close() })
		}
	}
}

// guardedKey is the key of the guarded connection in the context of a request.
type guardedKey struct{}

func withGuardedConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, guardedKey{}, guardedConnOf(c))
}

// announceClose says in a response that the connection ends, if it has to: over HTTP/2, when all that is under way is answered.
func announceClose(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(guardedKey{}).(*guardedConn); ok && c.closesAfterResponse.Load() {
		w.Header().Set("Connection", "close")
	}
}
