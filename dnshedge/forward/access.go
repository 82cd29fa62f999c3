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

// localNetworks are the clients that are served by default: this machine and private networks. An open forwarder is
// soon abused for amplification attacks.
var localNetworks = mustParsePrefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
	"::1/128", "fc00::/7", "fe80::/10")

func mustParsePrefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// accessControl decides which clients may ask questions, and limits the rate of questions of each client. It is safe
// for concurrent use.
type accessControl struct {
	allowed   []netip.Prefix
	perSecond float64 // questions of one client; 0: no limit

	mu        sync.Mutex                   // guards the fields below
	limits    map[netip.Addr]*rate.Limiter // limiters by clientNetwork
	oldLimits map[netip.Addr]*rate.Limiter // limiters of clients that have sent nothing since limits was created
}

// maxLimits is half of the limit of stored limiters. A sender with more addresses forges them, and gets a new limiter
// from time to time.
const maxLimits = 1 << 15

// isAllowed reports whether a client may ask questions.
func (a *accessControl) isAllowed(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(a.allowed, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// allowQuestion reports whether the client's rate limit permits another question now, and counts the question if so.
func (a *accessControl) allowQuestion(ip netip.Addr) bool {
	return a.perSecond == 0 || a.limiterFor(ip).Allow()
}

// maxWait limits how long a question over a stream waits for the rate limit. Such a wait delays the shutdown.
const maxWait = time.Second

// reserveQuestion counts a question that a client asks over a stream, and returns how long the question must wait for
// the rate limit. If the result is longer than maxWait, the question was not counted and must be rejected.
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

// limiterFor returns the rate limiter of the client to which ip belongs, and creates it if necessary. An IPv6 /64
// network is one client. Limiters of clients that have been quiet for long are removed.
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

// clientNetwork returns the address that stands for a client in limits: the IPv4 address itself, or the first address
// of an IPv6 /64 network.
func clientNetwork(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// clientAddress returns the IP address of a UDP or TCP client. For any other address it returns the zero Addr, which
// isAllowed rejects.
func clientAddress(at net.Addr) netip.Addr {
	switch at := at.(type) {
	case *net.UDPAddr:
		return at.AddrPort().Addr()
	case *net.TCPAddr:
		return at.AddrPort().Addr()
	}
	return netip.Addr{}
}

// A limitedListener accepts only connections of allowed clients, and limits the connections of each client. It closes
// other connections at once.
//
// slots limits the connections of all clients. It is nil if the server that calls Accept limits them.
type limitedListener struct {
	net.Listener
	access  *accessControl
	conns   clientCounter
	slots   *connlimit.Limiter
	closing chan struct{} // closed by Close
	close   sync.Once
}

func (g *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		ip := clientAddress(conn.RemoteAddr())
		one := clientNetwork(ip)
		if g.access.isAllowed(ip) && g.conns.tryAdd(one) {
			c := &limitedConn{Conn: conn}
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

func (g *limitedListener) Close() error {
	g.close.Do(func() { close(g.closing) })
	return g.Listener.Close()
}

// clientCounter limits the connections or requests that are open at a time. It is safe for concurrent use.
type clientCounter struct {
	maxPerClient int // limit for one client
	maxTotal     int // limit for all clients; 0: no limit

	mu       sync.Mutex         // guards the fields below
	n        int                // open connections or requests of all clients
	byClient map[netip.Addr]int // open connections or requests by client
}

// tryAdd counts one more connection or request of a client and returns true. It returns false, and counts nothing, if
// the limit of the client or of all clients is reached.
func (c *clientCounter) tryAdd(ip netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byClient[ip] >= c.maxPerClient || c.maxTotal > 0 && c.n >= c.maxTotal {
		return false
	}
	if c.byClient == nil {
		c.byClient = make(map[netip.Addr]int)
	}
	c.byClient[ip]++
	c.n++
	return true
}

// remove undoes one tryAdd of a client, when the connection or request has ended.
func (c *clientCounter) remove(ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.byClient[ip]--; c.byClient[ip] == 0 {
		delete(c.byClient, ip)
	}
}

// A limitedConn is an accepted connection that counts against the connection limits until it is closed.
type limitedConn struct {
	net.Conn
	release             func() // removes the connection from the counts
	slot                *connlimit.Slot
	busy                atomic.Bool // a request is being answered
	closesAfterResponse atomic.Bool // the connection is closed after the next response
}

func (c *limitedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// CloseWrite closes the writing side of the connection, so that the rest can be read before Close. It returns
// errors.ErrUnsupported if the connection cannot do that.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// giveUpSlot makes the connection end, because another connection needs its slot. If inUse is false, the connection is
// closed at once, and otherwise after the present response.
func (c *limitedConn) giveUpSlot(inUse bool) {
	c.closesAfterResponse.Store(true)
	if !inUse {
		go c.Close()
	}
}

// limitedConnOf returns the limitedConn that the TLS connection c wraps. c must come from the forwarder's own HTTPS
// listener.
func limitedConnOf(c net.Conn) *limitedConn { return c.(*tls.Conn).NetConn().(*limitedConn) }

// lastWriteTime is the time to send the last response before an HTTP connection that gives up its slot is closed.
const lastWriteTime = time.Second

// trackConnUse is the ConnState callback of the HTTPS server. It reports to the limiter of connections whether conn is
// answering a request, because connections that are not in use are closed first.
func trackConnUse(conn net.Conn, is http.ConnState) {
	c := limitedConnOf(conn)
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

// connContextKey is the context key under which the HTTPS server stores the connection of a request, a *limitedConn.
type connContextKey struct{}

func withLimitedConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connContextKey{}, limitedConnOf(c))
}

// announceClose adds "Connection: close" to a response if another connection needs the slot of this connection. Over
// HTTP/2, the connection then ends when all its requests are answered.
func announceClose(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connContextKey{}).(*limitedConn); ok && c.closesAfterResponse.Load() {
		w.Header().Set("Connection", "close")
	}
}
