// Package transport sends DNS queries to one server: over UDP, TCP, TLS or HTTPS.
//
// Each transport registers itself as a [Scheme]. A transport does not know callers, caches or hedging. It reports its
// observations to its [Owner].
//
// An abandoned query is a query whose caller has left and whose answer is still awaited, to measure its latency. The
// Owner limits abandoned queries.
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

// ErrClosed is the error of a query to a closed transport.
var ErrClosed = errors.New("dnshedge: client is closed")

// IsClosedByServer reports whether err means that the server has closed or reset a connection before its answer.
func IsClosedByServer(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(end error) bool { return errors.Is(err, end) })
}

// A Transport sends queries to one server. It is safe for concurrent use.
type Transport interface {
	// Exchange sends q and returns the response, which has passed q.Check. setup is the part of the latency that a
	// handshake took.
	//
	// n is the number of queries with the same question that the caller has sent to this server before. A repetition uses
	// another socket or connection than the first query, so that it does not stall with it.
	//
	// When ctx ends, Exchange returns at once with the context's cause. If the owner allows, the abandoned query waits on,
	// and its answer is measured.
	//
	// During the call, w records the connection that the query uses. w must not be nil.
	Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (a *wire.Answer, setup time.Duration, err error)

	// Ready reports whether a first query needs no handshake.
	Ready() bool

	// Close ends all queries with ErrClosed. It returns when all goroutines have ended.
	Close()
}

// A QueryPath records the socket or connection that a query uses. If a connection carries answers to other queries,
// this query is not lost but slow. If it carries none, the connection may be dead, even while other connections to the
// server work. The zero value has no connection. It is safe for concurrent use.
type QueryPath struct {
	lastAnswer atomic.Pointer[atomic.Int64] // the connection's time of the last answer; nil: no shared connection
}

// Reset removes the connection of an earlier query.
func (w *QueryPath) Reset() { w.lastAnswer.Store(nil) }

// LastAnswer returns the time of the last answer over the connection, or zero if there was none.
func (w *QueryPath) LastAnswer() time.Time {
	if c := w.lastAnswer.Load(); c != nil && c.Load() > 0 {
		return time.Unix(0, c.Load())
	}
	return time.Time{}
}

// An Owner receives the observations of a transport and sets its timeouts. Its methods are called from several
// goroutines and must not block.
type Owner interface {
	// RecordQuery is called for each query that is sent.
	RecordQuery()
	// RecordAnswer is called for each response, including that to an abandoned query. took is the time since the query was
	// written. path is the round trip time of the connection as measured by the kernel, or 0.
	RecordAnswer(took, path time.Duration)
	// RecordHandshake is called at the end of a handshake, with its duration.
	RecordHandshake(took time.Duration)
	// RecordIgnored is called for each received message that answers no query.
	RecordIgnored(err error)
	// RecordRetry is called when a query is repeated because its connection was closed.
	RecordRetry()

	// BeginAbandoned reports whether one more abandoned query may wait for its answer. If so, EndAbandoned is called once
	// when it has ended.
	BeginAbandoned() bool
	EndAbandoned()
	// AbandonedLifetime returns how long an abandoned query may wait for its answer.
	AbandonedLifetime() time.Duration
	// StallTimeout returns how long a connection with waiting queries may receive nothing, before the next query uses a
	// new one.
	StallTimeout() time.Duration
}

// A Dialer opens connections. *net.Dialer implements it.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// A Config describes the server of a transport, and how to send queries to it. All fields but Addrs, Path and Post must
// be set; TLS only for schemes that use it.
type Config struct {
	Owner  Owner
	Dialer Dialer
	Addr   string       // host and port of the server
	Addrs  []netip.Addr // addresses to dial in order in place of Addr's host
	Path   string       // path of the URL of an HTTPS server
	Post   bool         // send HTTPS requests with POST
	TLS    *tls.Config  // without NextProtos
	Size   int          // maximum size of a UDP response in bytes, sent in the OPT record
}

// dialServer opens a connection to the server. It tries Addrs in order. A panic of the Dialer becomes an error.
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

// A Forgetter is a Dialer that caches the server's address. Forget removes the address; it is called when a handshake
// has failed.
type Forgetter interface{ Forget() }

// forgetAddress removes the server's address from the cache of the Dialer, if it has one.
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
