// Package transport carries DNS queries to one server: over UDP, TCP, TLS or HTTPS.
//
// A transport is one file, which registers itself as a [Scheme]. It does not depend
// on callers, caches or hedging. It reports its observations to its [Owner], which also
// limits abandoned queries.
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

// ErrClosed is why a closed transport does not send.
var ErrClosed = errors.New("dnshedge: client is closed")

// IsClosedByServer reports whether an error says that the server has ended a connection instead of an answer.
func IsClosedByServer(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(end error) bool { return errors.Is(err, end) })
}

// A Transport carries queries to one server. It is safe for concurrent use.
type Transport interface {
	// Exchange sends q and returns the response, which has passed q.Check, and how
	// much of the time it took was a handshake.
	//
	// The caller has sent the same question to this server n times before and still
	// waits. Such a repetition shares nothing that can stall with the first query:
	// it goes over another socket or connection.
	//
	// When ctx ends, Exchange returns at once, with the context's cause. The query
	// is abandoned: if the owner allows, its answer is awaited and measured.
	//
	// While it runs, w tells of the connection that the query went over. It must not be nil.
	Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (a *wire.Answer, setup time.Duration, err error)

	// Ready reports whether a first query needs no handshake.
	Ready() bool

	// Close ends all queries with ErrClosed, and returns when no goroutine is left.
	Close()
}

// A QueryPath is the socket or connection of a query. A connection that carries answers to other queries has not lost
// this query, and is only slow. A connection that carries no answers may be dead, even if other connections to the
// server work. The zero value has no connection. It is safe for concurrent use.
type QueryPath struct {
	lastAnswer atomic.Pointer[atomic.Int64] // of the connection, see answered; nil: each query stands alone
}

// Reset forgets the connection of the query before.
func (w *QueryPath) Reset() { w.lastAnswer.Store(nil) }

// LastAnswer returns when an answer came over the connection the last time, or the zero time.
func (w *QueryPath) LastAnswer() time.Time {
	if c := w.lastAnswer.Load(); c != nil && c.Load() > 0 {
		return time.Unix(0, c.Load())
	}
	return time.Time{}
}

// An Owner receives the observations of a transport, and sets its timeouts. Its methods are called from several
// goroutines and must not block.
type Owner interface {
	// RecordQuery is called for each query that is sent.
	RecordQuery()
	// RecordAnswer is called for each response, also an abandoned query's, with the
	// time since the query was written and the connection's round trip time as the
	// kernel measures it, or 0.
	RecordAnswer(took, path time.Duration)
	// RecordHandshake is called when a handshake has ended, with its duration.
	RecordHandshake(took time.Duration)
	// RecordIgnored is called for each message that is no query's response.
	RecordIgnored(err error)
	// RecordRetry is called when a query is sent again because a connection that was
	// used before turned out to be closed.
	RecordRetry()

	// BeginAbandoned reports whether one more query may run on without a caller. If so,
	// EndAbandoned is called once when it has ended.
	BeginAbandoned() bool
	EndAbandoned()
	// AbandonedLifetime is how long an abandoned query runs on.
	AbandonedLifetime() time.Duration
	// StallTimeout is how long a connection may be silent while queries wait, before the
	// next query goes over a new one.
	StallTimeout() time.Duration
}

// A Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Config says which server a transport asks, and how. All fields but Addrs, Path
// and Post must be set; TLS only for schemes that use it.
type Config struct {
	Owner  Owner
	Dialer Dialer
	Addr   string       // host and port
	Addrs  []netip.Addr // to dial in order instead of Addr's host
	Path   string       // of an HTTPS server
	Post   bool         // ask an HTTPS server by POST
	TLS    *tls.Config  // without NextProtos
	Size   int          // the longest datagram that the server may send, in bytes
}

// dialServer dials the server. A panic of the Dialer is an error.
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

// A Forgetter is a Dialer that remembers where the server is. Forget is called when a handshake has failed there.
type Forgetter interface{ Forget() }

// forgetAddress makes the Dialer forget where the server is.
func (c *Config) forgetAddress() {
	if f, ok := c.Dialer.(Forgetter); ok {
		f.Forget()
	}
}

// tlsConfig returns the TLS configuration for the given protocols (ALPN).
func (c *Config) tlsConfig(protocols ...string) *tls.Config {
	t := c.TLS.Clone()
	t.NextProtos = protocols
	return t
}
