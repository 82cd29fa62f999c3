package dnshedge

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// A Protocol is a protocol for upstreams that another package provides, such as DNS over QUIC. RegisterProtocol makes
// it available. All fields except Path must be set.
//
// The Client keeps the connections that Dial opens, and shares them among queries. The protocol must recover lost
// packets itself: the Client sends a query to the same server again only as a hedge, or if Upstream.Addrs has several
// addresses.
type Protocol struct {
	Scheme string // scheme of the address in ParseUpstream, and value of Upstream.Net
	RFC    int    // number of the RFC that specifies the protocol
	Port   string // default port of a server
	Path   string // default of Upstream.Path; empty: an upstream has no path

	// Dial opens a connection to a server. The handshake must authenticate the server with to.TLS.
	Dial func(ctx context.Context, to DialTarget) (ProtocolConn, error)
}

// A DialTarget describes the upstream to which a Protocol opens a connection.
type DialTarget struct {
	Addr string      // host and port, as in Upstream.Addr
	Path string      // as in Upstream.Path, or its default
	Post bool        // as in Upstream.Post
	TLS  *tls.Config // of the Client and the upstream, without NextProtos; the Protocol may change it

	// DialContext opens a connection to the server by the Client's Dialer, for example with the network "udp". It uses
	// Upstream.Addrs if that is set.
	DialContext func(ctx context.Context, network string) (net.Conn, error)
}

// A ProtocolConn is a connection that Protocol.Dial has opened. It is safe for concurrent use.
type ProtocolConn interface {
	// Exchange sends a query in wire format, and returns the response. The query has the ID 0 and is padded (RFC 8467).
	// The response must have the same ID. The Client checks that it answers the question. When ctx ends, Exchange
	// cancels the query and returns soon.
	//
	// A *StatusError means that the server has responded without a DNS message. Any other error means that the server
	// has ended the exchange or the connection. If the connection has ended, Done must be closed before Exchange
	// returns, or the error must be net.ErrClosed (errors.Is).
	//
	// If the server permits no more queries at a time over the connection, Exchange should return ErrNoStream, at the
	// latest after 50 ms. The Client then uses another connection.
	Exchange(ctx context.Context, query []byte) (response []byte, err error)

	// Done returns a channel that is closed when the connection has ended, or accepts no further queries.
	Done() <-chan struct{}

	// Close closes the connection. Exchange then returns an error.
	Close() error
}

// ErrNoStream is the error of a query that was not sent, because the server limits the number of queries in flight over
// a connection, for example by its HTTP/2 or QUIC streams.
var ErrNoStream = localerror.ErrNoStream

// RegisterProtocol makes the protocol p available to all Clients. It must be called by an init function. It panics if
// Scheme, RFC, Port or Dial is not set, or if the scheme is registered already.
func RegisterProtocol(p Protocol) {
	if p.Scheme == "" || p.RFC == 0 || p.Port == "" || p.Dial == nil {
		panic("dnshedge: RegisterProtocol: Scheme, RFC, Port and Dial must be set")
	}
	scheme := transport.Scheme{Name: p.Scheme, RFC: p.RFC, Port: p.Port, TLS: true, Path: p.Path}
	transport.RegisterProtocol(scheme, func(ctx context.Context, c *transport.Config) (transport.MessageConn, error) {
		conn, err := p.Dial(ctx, DialTarget{Addr: c.Addr, Path: c.Path, Post: c.Post, TLS: c.TLS.Clone(), DialContext: c.DialServer})
		switch {
		case err != nil:
			return nil, err
		case conn == nil:
			return nil, errors.New("dnshedge: a Protocol returned neither a connection nor an error")
		}
		return protocolConn{conn}, nil
	})
}

// A protocolConn adapts a user's ProtocolConn to package transport. If Exchange returns a *StatusError for an HTTP
// status other than 200, it converts the error to the error type of package transport.
type protocolConn struct{ ProtocolConn }

func (c protocolConn) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	b, err := c.ProtocolConn.Exchange(ctx, query)
	var status *StatusError
	if errors.As(err, &status) {
		return nil, transport.NewStatusError(status.Code, status.RetryAfter)
	}
	return b, err
}
