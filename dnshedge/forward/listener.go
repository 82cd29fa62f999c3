package forward

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/connlimit"
)

// listenPackets opens n UDP sockets at one address, such as "127.0.0.1:53", or at most one on systems without
// SO_REUSEPORT. With port 0, the system chooses one port, which bound contains. After an error, the caller must close
// the returned sockets.
func listenPackets(address string, n int) (sockets []net.PacketConn, bound string, err error) {
	var c net.ListenConfig
	if n > 1 {
		c.Control = reusePort
	}
	for range min(n, maxSockets) {
		pc, err := c.ListenPacket(context.Background(), "udp", address)
		if err != nil {
			return sockets, address, err
		}
		sockets = append(sockets, pc)
		if host, port, err := net.SplitHostPort(address); err == nil && strings.Trim(port, "0") == "" {
			address = net.JoinHostPort(host, strconv.Itoa(pc.LocalAddr().(*net.UDPAddr).Port))
		}
	}
	return sockets, address, nil
}

// A limitedListener is a TCP listener that accepts only connections of allowed clients, and closes all others. It
// limits the connections of each client, and with slots the connections of all clients together.
type limitedListener struct {
	net.Listener // of TCP
	access       *accessControl
	conns        clientLimiter
	slots        *connlimit.Limiter // nil: the server that calls Accept limits the connections of all clients
	closing      chan struct{}      // closed by Close
	close        sync.Once
}

func (g *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := connlimit.ClientAddress(conn.RemoteAddr())
		if g.access.allowed.Contains(clientAddress(conn.RemoteAddr())) && g.conns.tryAdd(client) {
			c := &limitedConn{TCPConn: conn.(*net.TCPConn), conns: &g.conns, client: client}
			if c.acquireSlot(g) {
				return c, nil
			}
			conn = c
		}
		_ = conn.Close()
	}
}

func (g *limitedListener) Close() error {
	g.close.Do(func() { close(g.closing) })
	return g.Listener.Close()
}

// A clientLimiter limits how many connections or requests of each client, and of all clients together, are open at a
// time. It is safe for concurrent use.
type clientLimiter struct {
	maxPerClient int // limit for one client
	maxTotal     int // limit for all clients; 0: no limit

	mu       sync.Mutex         // guards the fields below
	n        int                // open connections or requests of all clients
	byClient map[netip.Addr]int // open connections or requests by client; must not be nil
}

// tryAdd counts one more connection or request of the client with the address ip, and returns true. If the limit of the
// client or of all clients is reached, it counts nothing and returns false.
func (c *clientLimiter) tryAdd(ip netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byClient[ip] >= c.maxPerClient || c.maxTotal > 0 && c.n >= c.maxTotal {
		return false
	}
	c.byClient[ip]++
	c.n++
	return true
}

// remove counts one connection or request less for the client with the address ip, because it has ended. The caller
// must have counted it with tryAdd.
func (c *clientLimiter) remove(ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.byClient[ip]--; c.byClient[ip] == 0 {
		delete(c.byClient, ip)
	}
}

// A limitedConn is an accepted TCP connection of a client. It counts against the limits of open connections until it is
// closed, and limits the time of each Write.
type limitedConn struct {
	*net.TCPConn
	conns               *clientLimiter // counts the connection
	client              netip.Addr
	closed              atomic.Bool     // the connection does not count any more
	accepted            chan struct{}   // closed when slot is set, for closeToFreeSlot; nil: there are no slots
	slot                *connlimit.Slot // nil: there is none
	busy                atomic.Bool     // a request is being answered
	closesAfterResponse atomic.Bool     // the connection is closed after the next response
	limitsWrites        atomic.Bool     // there is no deadline for writing, so each Write gets one
	writeFailed         atomic.Bool     // a Write has failed
}

// acquireSlot acquires one of the listener's places for open connections, which Close releases. It may block until a
// place is free, and returns false if the connection must be closed instead. Without a limit (slots is nil) it returns
// true.
func (c *limitedConn) acquireSlot(g *limitedListener) (ok bool) {
	if g.slots == nil {
		return true
	}
	c.accepted = make(chan struct{})
	defer close(c.accepted)
	c.slot, ok = g.slots.AcquireSlot(c.client, g.closing, c.closeToFreeSlot)
	return ok
}

func (c *limitedConn) Close() error {
	if !c.closed.Swap(true) {
		c.slot.Release()
		c.conns.remove(c.client)
	}
	return c.TCPConn.Close()
}

// SetWriteDeadline sets the deadline for writing. If t is zero, each Write may take 20 s (2 * idleTime), so that a
// client that reads nothing does not keep the connection open.
func (c *limitedConn) SetWriteDeadline(t time.Time) error {
	// While net/http reads a request, it sets no deadline, but TLS may answer a KeyUpdate (RFC 8446 §4.6.3).
	c.limitsWrites.Store(t.IsZero())
	return c.TCPConn.SetWriteDeadline(t)
}

// Write writes b. After an error, all further calls fail at once with net.ErrClosed.
func (c *limitedConn) Write(b []byte) (int, error) {
	if c.writeFailed.Load() {
		return 0, net.ErrClosed
	}
	if c.limitsWrites.Load() {
		_ = c.TCPConn.SetWriteDeadline(time.Now().Add(2 * idleTime))
	}
	n, err := c.TCPConn.Write(b)
	if err != nil {
		c.writeFailed.Store(true) // otherwise an alert of package tls would wait until another deadline
	}
	return n, err
}

// closeToFreeSlot makes the connection end, because a newer connection needs its place in the limit of open
// connections. If inUse is true, a request is being answered, and the connection closes after the response. Otherwise
// it closes at once.
func (c *limitedConn) closeToFreeSlot(inUse bool) {
	c.closesAfterResponse.Store(true)
	if !inUse {
		go func() {
			<-c.accepted
			_ = c.Close()
		}()
	}
}

// limitedConnOf returns the accepted connection beneath c, to report its use to the connection limiter. c must be a TLS
// connection from the HTTPS listener of a Forwarder.
func limitedConnOf(c net.Conn) *limitedConn { return c.(*tls.Conn).NetConn().(*limitedConn) }

// lastWriteTime is the time to send the last response before an HTTP connection that gives up its slot is closed.
const lastWriteTime = time.Second

// trackConnUse is the ConnState callback of the HTTPS server (http.Server.ConnState). It reports to the connection
// limiter whether conn is answering a request. If another connection needs the place of conn, it closes conn one second
// after the last response.
func trackConnUse(conn net.Conn, state http.ConnState) {
	c := limitedConnOf(conn)
	switch state {
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

// withLimitedConn returns a context for the HTTP requests of the connection c. announceClose finds the connection in
// that context.
func withLimitedConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connContextKey{}, limitedConnOf(c))
}

// announceClose adds the header "Connection: close" to the response to r if another connection needs the slot of the
// connection of r (closeToFreeSlot). Over HTTP/2, net/http then closes the connection when all its requests are
// answered.
func announceClose(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connContextKey{}).(*limitedConn); ok && c.closesAfterResponse.Load() {
		w.Header().Set("Connection", "close")
	}
}
