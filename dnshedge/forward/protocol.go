package forward

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/connlimit"
)

// A Listener answers clients over a protocol that this package does not have, for example DNS over QUIC in the module
// dnshedge/quic. It is open before it is passed to New.
type Listener interface {
	// Serve answers the queries of clients with h, until Shutdown. It then returns dnshedge.ErrServerClosed. It is called
	// once, or never if New fails.
	Serve(h *QueryHandler) error

	// Shutdown closes the listener, answers the queries that were received before, and closes the connections of clients.
	// If ctx ends first, it closes the connections at once and returns the cause of ctx.
	Shutdown(ctx context.Context) error
}

// A QueryHandler answers the queries that a Listener receives. It applies the access list and the limits of its
// Forwarder. It is safe for concurrent use.
type QueryHandler struct {
	access  *accessControl
	server  *dnshedge.Server
	web     *dohHandler
	slots   *connlimit.Limiter // for the connections of all clients of all Listeners
	conns   *clientLimiter     // for the connections of each client to one Listener
	closing context.Context    // ends when the Forwarder shuts down
}

// IsAllowed reports whether the access list contains the client. A Listener must not answer other clients. client must be
// a *net.UDPAddr or a *net.TCPAddr.
func (h *QueryHandler) IsAllowed(client net.Addr) bool {
	return h.access.allowed.Contains(clientAddress(client))
}

// AdmitConn counts a new connection of an allowed client, and returns its ClientConn and true. It returns false if the
// client already has Limits.ConnsPerClient connections to this Listener; the caller must then close the new connection.
//
// The Listener must have validated the client's address, for example as QUIC does (RFC 9000 §8). The caller must call
// ClientConn.Close when the connection has ended.
func (h *QueryHandler) AdmitConn(client net.Addr) (*ClientConn, bool) {
	c := &ClientConn{handler: h, client: connlimit.ClientAddress(client)}
	if a, ok := client.(interface{ AddrPort() netip.AddrPort }); ok {
		c.addr = net.TCPAddrFromAddrPort(a.AddrPort()) // queries do not come in datagrams whose address may be forged
	}
	if !h.conns.tryAdd(c.client) { // forged addresses would use up the connections of other clients
		return nil, false
	}
	c.ended, c.cancel = context.WithCancel(h.closing)
	return c, true
}

// A ClientConn represents one connection of a client to a Listener. QueryHandler.AdmitConn returns it, and the Listener
// passes the queries of the connection to it: to Answer, or over HTTP to ServeHTTP. It is safe for concurrent use.
type ClientConn struct {
	handler *QueryHandler
	client  netip.Addr // identifies the client
	addr    net.Addr
	ended   context.Context    // ends when the connection has ended or the Forwarder shuts down
	cancel  context.CancelFunc // ends ended

	mu     sync.Mutex      // guards the fields below; Start sets slot before queries are answered
	slot   *connlimit.Slot // nil: Start has not succeeded
	closed bool
}

var _ http.Handler = (*ClientConn)(nil)

// Start acquires a place for the connection within Limits.Conns, and may block until one is free. It returns false if
// the connection must be closed, also after a call of Close. It must be called before the first query is answered.
//
// onEvict is called when another connection needs the place. It must not block, and must close the connection: at once,
// or after the last response if inUse is true.
func (c *ClientConn) Start(onEvict func(inUse bool)) bool {
	if c.ended.Err() != nil {
		return false // no other connection is evicted in vain
	}
	slot, ok := c.handler.slots.AcquireSlot(c.client, c.ended.Done(), onEvict)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok || c.closed {
		slot.Release()
		return false
	}
	c.slot = slot
	return true
}

// Answer answers a query in wire format, and blocks until there is a response. The result is nil if query is not a DNS
// query, would wait for the rate limit for more than a second, or arrives during the shutdown. The caller must then
// close the connection.
func (c *ClientConn) Answer(query []byte) []byte {
	c.slot.BeginUse()
	defer c.slot.EndUse()
	return c.handler.server.AnswerQuery(query, c.addr)
}

// ServeHTTP answers a request for DNS over HTTPS (RFC 8484). The path is /dns-query. Requests for other paths get the
// status 404, and count against the limits of requests and questions as well.
func (c *ClientConn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.slot.BeginUse()
	defer c.slot.EndUse()
	c.handler.web.ServeHTTP(w, r)
}

// Close releases the connection's place among the open connections. The caller must call it when the connection has
// ended. Further calls have no effect.
func (c *ClientConn) Close() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.slot.Release()
		c.handler.conns.remove(c.client)
	}
}
