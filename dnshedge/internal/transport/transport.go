// Package transport sends DNS queries to one server over UDP, TCP, TLS or HTTPS.
//
// Each protocol registers itself as a [Scheme], whose New function returns a [Transport]. A Transport has no cache and
// sends no hedges. It reports its observations, for example latencies, to its [Owner].
//
// A query whose caller no longer waits is called abandoned. A Transport may keep waiting for the response to an
// abandoned query to measure its latency. The Owner limits how many abandoned queries there are.
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ErrClosed is the error of a query to a Transport that was closed.
var ErrClosed = errors.New("dnshedge: client is closed")

// IsClosedByServer reports whether err means that the server has closed or reset a connection before it responded.
func IsClosedByServer(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(end error) bool { return errors.Is(err, end) })
}

// A Transport sends queries to one server over one protocol. It is safe for concurrent use.
type Transport interface {
	// Exchange sends q and returns the response, which fits q (see wire.Query.Check). setup is the part of the latency
	// that a handshake took; 0 means that there was no handshake.
	//
	// n is the number of times that the caller has sent the same question to this server before. A repetition uses another
	// socket or connection than the first query. So it does not wait for the same stalled connection.
	//
	// When ctx ends, Exchange returns the cause of ctx at once. If the Owner permits it, the transport keeps waiting for
	// the response in the background, to measure its latency.
	//
	// During the call, the transport stores in w which connection the query uses. w must not be nil.
	Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (a *wire.Answer, setup time.Duration, err error)

	// Ready reports whether the first query of a question can be sent without a handshake.
	Ready() bool

	// Close ends all queries with ErrClosed. It returns when all goroutines of the transport have ended.
	Close()
}

// A QueryPath records which connection a query uses, so that the sender of the query can tell a slow query from a lost
// one. If the connection carries responses to other queries, this query is only slow. If it carries none, the
// connection may be dead, even while other connections to the server work.
//
// The zero value has no connection. It is safe for concurrent use.
type QueryPath struct {
	// lastAnswer points to the connection's time of the last response, in Unix nanoseconds. It is nil if the query uses no
	// shared connection.
	lastAnswer atomic.Pointer[atomic.Int64]
}

// Reset makes w empty, so that it can be used for another query.
func (w *QueryPath) Reset() { w.lastAnswer.Store(nil) }

// LastAnswer returns the time of the last response over the connection of the query. It is zero if there was none, or
// if the query uses no shared connection.
func (w *QueryPath) LastAnswer() time.Time {
	if c := w.lastAnswer.Load(); c != nil && c.Load() > 0 {
		return time.Unix(0, c.Load())
	}
	return time.Time{}
}

// An Owner receives the observations of a Transport and sets its timeouts. The Transport calls the methods from several
// goroutines at the same time. They must not block.
type Owner interface {
	// RecordQuery is called for each query that is written to a socket or connection.
	RecordQuery()
	// RecordAnswer is called for each response, even if the query was abandoned. took is the time since the query was
	// written. path is the round trip time of the connection as measured by the kernel, or 0 if it is unknown.
	RecordAnswer(took, path time.Duration)
	// RecordHandshake is called after each successful handshake, with the time that the connection took to open.
	RecordHandshake(took time.Duration)
	// RecordIgnored is called for each received message that fits no query. err says why.
	RecordIgnored(err error)
	// RecordRetry is called when a query is sent again because its connection was closed.
	RecordRetry()

	// BeginAbandonedQuery is called when a caller no longer waits for the response to a query: the query is abandoned.
	// It must return whether the transport may keep waiting for the response. If it returns true, EndAbandonedQuery is
	// called when that wait ends.
	BeginAbandonedQuery() bool
	// EndAbandonedQuery is called once for each call of BeginAbandonedQuery that returned true.
	EndAbandonedQuery()
	// AbandonedLifetime returns how long an abandoned query may wait for its response, since the query was sent.
	AbandonedLifetime() time.Duration
	// StallTimeout returns how long a connection with waiting queries may receive nothing. After that time, the next query
	// uses a new connection.
	StallTimeout() time.Duration
}

// A Config describes the server of a Transport, and how to send queries to it. Addrs, Path and Post are optional. TLS
// must be set if the scheme uses TLS, and must not be set otherwise. All other fields must be set.
type Config struct {
	Owner  Owner           // receives observations and sets timeouts
	Dialer usercode.Dialer // opens the connections to the server
	Addr   string          // host and port of the server, separated by a colon
	Addrs  []netip.Addr    // addresses to dial, in this order, instead of the host in Addr
	Path   string          // URL path for HTTPS, for example /dns-query
	Post   bool            // send HTTPS requests with POST instead of GET
	TLS    *tls.Config     // TLS configuration; NextProtos must be unset
	Size   int             // largest UDP response in bytes that queries ask for, in their OPT record
}

// dialServer opens a connection to the server over the given network, "tcp" or "udp". If Addrs is set, it tries these
// addresses in order, and the error joins the errors of all. It returns an error if the Dialer panics.
func (c *Config) dialServer(ctx context.Context, network string) (net.Conn, error) {
	if len(c.Addrs) == 0 {
		return usercode.DialGuarded(ctx, c.Dialer, network, c.Addr)
	}
	_, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range c.Addrs {
		conn, err := usercode.DialGuarded(ctx, c.Dialer, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// A Forgetter is a Dialer that caches the addresses of the server's host name. Forget removes them from the cache. A
// Transport calls it when a handshake has failed, because the addresses may be outdated.
type Forgetter interface{ Forget() }

// forgetAddress makes the Dialer forget the addresses of the server, if it caches them (see Forgetter).
func (c *Config) forgetAddress() {
	if f, ok := c.Dialer.(Forgetter); ok {
		f.Forget()
	}
}

// tlsConfig returns a copy of the TLS configuration with the given ALPN protocols.
func (c *Config) tlsConfig(protocols ...string) *tls.Config {
	t := c.TLS.Clone()
	t.NextProtos = protocols
	return t
}
