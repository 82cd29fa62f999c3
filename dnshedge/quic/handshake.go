package quic

import (
	"context"
	"net"
	"net/netip"
	"sync"

	quicgo "github.com/quic-go/quic-go"

	"github.com/gohedge/hedge/dnshedge/forward"
)

const (
	// With freeHandshakes unfinished handshakes, a client must prove that it receives packets at its address before memory is
	// used for it (Retry, RFC 9000 §8.1.2). With maxHandshakes, new connections are refused.
	freeHandshakes = 32
	maxHandshakes  = 1024

	// maxClientHandshakes is the limit for a client whose address is validated. Otherwise a few clients could use up
	// maxHandshakes. Handshakes before the validation do not count, because their addresses may be forged.
	maxClientHandshakes = 16
)

// A handshake is the state of a client's connection during the handshake, until package quic-go passes the connection to
// Accept.
type handshake struct {
	end    func()              // records that the handshake has ended
	client *forward.ClientConn // nil: the address of the client was not validated when the handshake began
}

// handshakeKey is the context key of a *handshake, in the context of a connection.
type handshakeKey struct{}

// admitHandshake decides whether a client's handshake may begin, and returns an error to refuse it. It is the function
// ConnContext of a quicgo.Transport: ctx ends with the connection, and the returned context holds the *handshake.
//
// A client with a validated address may have maxClientHandshakes unfinished handshakes. All other clients, whose
// addresses may be forged, share freeHandshakes: above that number, package quic-go validates addresses first (Retry).
func (l *Listener) admitHandshake(ctx context.Context, info *quicgo.ClientInfo) (context.Context, error) {
	if !l.handler.IsAllowed(info.RemoteAddr) {
		return nil, errRefused
	}
	var prefix netip.Addr // zero: not validated
	if info.AddrVerified {
		prefix = clientPrefix(info.RemoteAddr)
	}
	if !l.handshakes.tryAdd(prefix) {
		return nil, errRefused
	}
	h := &handshake{end: sync.OnceFunc(func() { l.handshakes.remove(prefix) })}
	if info.AddrVerified {
		client, ok := l.handler.AdmitConn(info.RemoteAddr)
		if !ok {
			h.end()
			return nil, errRefused
		}
		context.AfterFunc(ctx, client.Close)
		h.client = client
	}
	context.AfterFunc(ctx, h.end)
	return context.WithValue(ctx, handshakeKey{}, h), nil
}

// clientPrefix returns the address prefix that identifies a client, as for forward.Limits: an IPv4 address, the /64
// network of an IPv6 address, or a link-local address.
func clientPrefix(client net.Addr) netip.Addr {
	at, ok := client.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.IPv4Unspecified()
	}
	ip := at.AddrPort().Addr().Unmap()
	if ip.Is6() && !ip.IsLinkLocalUnicast() {
		p, _ := ip.WithZone("").Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// A handshakeCounter counts the unfinished handshakes of a Listener, in all and for each client, to limit them. It is
// safe for concurrent use.
type handshakeCounter struct {
	mu       sync.Mutex         // guards the fields below
	total    int                // handshakes of all clients
	byPrefix map[netip.Addr]int // handshakes of clients whose address is validated, by their clientPrefix
}

// count returns the number of unfinished handshakes of all clients together.
func (c *handshakeCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// tryAdd counts a new handshake and returns true. If there are maxHandshakes unfinished handshakes in all, or
// maxClientHandshakes of this client, it counts nothing and returns false.
//
// prefix is the address prefix that identifies the client (see clientPrefix). It is the zero Addr if the client's
// address is not validated: only maxHandshakes then applies, because the address may be forged.
func (c *handshakeCounter) tryAdd(prefix netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= maxHandshakes || prefix.IsValid() && c.byPrefix[prefix] >= maxClientHandshakes {
		return false
	}
	c.total++
	if prefix.IsValid() {
		if c.byPrefix == nil {
			c.byPrefix = make(map[netip.Addr]int)
		}
		c.byPrefix[prefix]++
	}
	return true
}

// remove counts one handshake less, because it has ended. prefix must be the argument of the call of tryAdd that
// counted it.
func (c *handshakeCounter) remove(prefix netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if !prefix.IsValid() {
		return
	}
	if c.byPrefix[prefix]--; c.byPrefix[prefix] == 0 {
		delete(c.byPrefix, prefix)
	}
}
