// Package transport sends DNS queries to one server over UDP, TCP, TLS or HTTPS.
//
// Each protocol registers itself as a [Scheme], whose New function returns a [Transport]. A Transport has no cache and
// sends no hedges. It reports its observations, for example latencies, to its [Owner].
//
// A query whose caller no longer waits is called abandoned. A Transport may keep waiting for the response to an
// abandoned query to measure its latency. The Owner limits how many abandoned queries there are.
package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ErrClosed is the error of a query to a Transport that was closed.
var ErrClosed = errors.New("dnshedge: client is closed")

// IsClosedByServer reports whether err means that the server has closed or reset a connection before it responded.
func IsClosedByServer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || socketerror.IsAny(err, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE)
}

// A Transport sends queries to one server over one protocol. It is safe for concurrent use.
type Transport interface {
	// Exchange sends q and returns the response, which fits q (see wire.Query.CheckResponse). setup is the part of the
	// latency that a handshake took; 0 means that there was no handshake.
	//
	// n is the number of times that the caller has sent the same question to this server before. If n is 0, q is the
	// first query of the question. A later query, such as a hedge or a retransmission, uses another socket or
	// connection, so that it does not wait for the same stalled connection.
	//
	// When ctx ends, Exchange returns the cause of ctx at once. If the Owner permits it, the transport keeps waiting for
	// the response in the background, to measure its latency.
	//
	// During the call, the transport stores in path which connection the query uses. path must not be nil. It may have the
	// connection of an earlier query, which Exchange removes.
	Exchange(ctx context.Context, q *wire.Query, n int, path *QueryPath) (a *wire.Answer, setup time.Duration, err error)

	// Ready reports whether the first query of a question (n is 0 in Exchange) can be sent without a handshake.
	Ready() bool

	// Close closes all connections, and returns when all goroutines of the transport have ended. Queries in flight end
	// with ErrClosed. Only a query with a UDP socket of its own may run on until its ctx ends.
	Close()
}

// A QueryPath records the connection of a query, to distinguish a slow query from a lost one. A query is slow, not
// lost, if its connection carries responses to others. The zero value has no connection, as for UDP. It is safe for
// concurrent use.
type QueryPath struct {
	// lastAnswer points to the connection's time of the last response, in Unix nanoseconds. It is nil if the query uses no
	// shared connection.
	lastAnswer atomic.Pointer[atomic.Int64]
}

// LastAnswer returns the time at which a response to any query last arrived over the connection that path records. It
// is zero if no response has arrived, or if path has no connection.
func (path *QueryPath) LastAnswer() time.Time {
	if c := path.lastAnswer.Load(); c != nil && c.Load() > 0 {
		return time.Unix(0, c.Load())
	}
	return time.Time{}
}

// An Owner receives the observations of a Transport and sets its timeouts. The user of the Transport implements it. The
// Transport calls the methods from several goroutines at the same time. They must not block.
type Owner interface {
	// RecordQuery is called for each query that is written to a socket or connection.
	RecordQuery()
	// RecordAnswer is called for each response, even if the query was abandoned. took is the time since the query was
	// written. path is the round trip time of the connection as measured by the kernel, or 0 if it is unknown.
	RecordAnswer(took, path time.Duration)
	// RecordHandshake is called after each successful handshake, with the time that the connection took to open.
	RecordHandshake(took time.Duration)
	// RecordIgnored is called for each received message that fits no query, is too long, or cannot be parsed. err is
	// the reason.
	RecordIgnored(err error)
	// RecordRetry is called when a query is sent again because its connection was closed.
	RecordRetry()

	// TryBeginAbandonedQuery is called when a caller no longer waits for the response to a query: the query is abandoned.
	// It must return whether the transport may keep waiting for the response. If it returns true, EndAbandonedQuery is
	// called when that wait ends.
	TryBeginAbandonedQuery() bool
	// EndAbandonedQuery is called once for each call of TryBeginAbandonedQuery that returned true.
	EndAbandonedQuery()
	// AbandonedQueryLifetime returns how long an abandoned query may wait for its response. The time starts when the query is
	// sent over UDP. With other protocols, it starts when the query is abandoned.
	AbandonedQueryLifetime() time.Duration
	// StallTimeout returns how long a connection with waiting queries may receive nothing. After that time, the next query
	// uses a new connection.
	StallTimeout() time.Duration
}

// awaitAbandonedQuery waits until an abandoned query, whose caller no longer waits, sends its result to done. After
// owner.AbandonedQueryLifetime it calls cancel, which must end the query. The caller must have called
// owner.TryBeginAbandonedQuery. awaitAbandonedQuery calls owner.EndAbandonedQuery at the end.
func awaitAbandonedQuery[T any](owner Owner, done <-chan T, cancel func()) {
	defer owner.EndAbandonedQuery()
	t := time.NewTimer(owner.AbandonedQueryLifetime())
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		cancel()
		<-done
	}
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

// DialServer opens a connection to the server over the given network, "tcp" or "udp". If Addrs is set, it tries these
// addresses in order, and the error joins the errors of all. It returns an error if the Dialer panics.
func (c *Config) DialServer(ctx context.Context, network string) (net.Conn, error) {
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

// forgetAddress makes a Dialer that caches the server's addresses (see Forgetter) look them up again before it dials
// next. It has no effect on other Dialers. It must be called after a failed handshake, because the addresses may be
// outdated.
func (c *Config) forgetAddress() {
	if f, ok := c.Dialer.(Forgetter); ok {
		f.Forget()
	}
}

// tlsConfig returns a copy of the field TLS with the given ALPN protocols.
func (c *Config) tlsConfig(protocols ...string) *tls.Config {
	t := c.TLS.Clone()
	t.NextProtos = protocols
	return t
}

// A Scheme describes a protocol over which queries can be sent, as a URL scheme selects it, for example "tls".
type Scheme struct {
	Name string                 // URL scheme
	RFC  int                    // number of the RFC that specifies the protocol; schemes are sorted by it
	Port string                 // default port of a server
	TLS  bool                   // servers are authenticated by a TLS certificate
	Path string                 // default URL path; empty: a URL must have no path
	New  func(Config) Transport // returns a Transport to a server; it opens no connection

	// RecoversLoss means that the protocol sends lost packets again itself, and that one lost packet delays no other query.
	// So a query is not sent to the same server again because it is late, except as a hedge.
	RecoversLoss bool
}

// schemes holds the registered schemes by Name. It must only be changed during initialization.
var schemes = make(map[string]Scheme)

// registerScheme makes the scheme s available to FindScheme and Schemes. Only init functions may call it. newSender
// returns the implementation of the protocol for one server. registerScheme sets s.New, which wraps the sender in a
// schemeTransport.
func registerScheme(s Scheme, newSender func(Config) sender) {
	s.New = func(c Config) Transport { return &schemeTransport{sender: newSender(c)} }
	schemes[s.Name] = s
}

// FindScheme returns the scheme for a URL scheme, for example "tls". It returns false if the scheme is unknown.
func FindScheme(name string) (Scheme, bool) {
	s, ok := schemes[name]
	return s, ok
}

// Schemes returns all schemes, sorted by the number of their RFC.
func Schemes() []Scheme {
	return slices.SortedFunc(maps.Values(schemes), func(a, b Scheme) int { return cmp.Compare(a.RFC, b.RFC) })
}

// ednsOffTime is the time for which a server that seems not to support EDNS gets queries without EDNS.
const ednsOffTime = 15 * time.Minute

// A sender is a Transport for one protocol that can also send a message that must not be sent twice.
type sender interface {
	Transport
	// SendOnce writes q at most once, to one server, because q may not be safe to repeat. The other parameters and results
	// are those of Exchange. written matters only if err is not nil: it is true if the server may have received q.
	SendOnce(ctx context.Context, q *wire.Query, path *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// A schemeTransport is a Transport that adds the behaviour of all protocols to a sender. If the server rejects EDNS
// (RFC 6891 §7), a query may be repeated without EDNS. Messages with an opcode other than QUERY, such as UPDATE, are
// sent at most once.
type schemeTransport struct {
	sender
	ednsOffUntil atomic.Int64 // queries have no EDNS before this time, in Unix nanoseconds

	// lastEDNS is the time of the last response that had an OPT record and did not reject EDNS, in Unix nanoseconds. It is
	// 0 if there was none.
	lastEDNS atomic.Int64
}

// Exchange implements Transport. It returns the response to q, and the time that handshakes took. n is the number of
// earlier queries with the same question to this server. A query with the opcode QUERY may be repeated without EDNS if
// the server rejects EDNS.
func (e *schemeTransport) Exchange(ctx context.Context, q *wire.Query, n int, path *QueryPath) (*wire.Answer, time.Duration, error) {
	path.lastAnswer.Store(nil)
	if !q.IsStandard() {
		a, setup, written, err := e.SendOnce(ctx, q, path)
		if err != nil && written {
			err = &possiblyReceivedError{err} // see MayBeReceived
		}
		return a, setup, err
	}
	// A query with the DO bit (RFC 3225 §3) or EDNS options needs EDNS, and is always sent with it first.
	wishes := q.WantsDNSSEC() || q.HasOptions()
	now := time.Now().UnixNano()
	if !wishes && now < e.ednsOffUntil.Load() {
		return e.sender.Exchange(ctx, q.WithoutEDNS(), n, path)
	}
	a, setup, err := e.sender.Exchange(ctx, q, n, path)
	if err != nil {
		return a, setup, err
	}
	if !isEDNSRejected(a) {
		if a.EDNS {
			e.lastEDNS.Store(now)
		}
		return a, setup, nil
	}
	// After a recent response with an OPT record, a rejection is probably passed on from another server, or forged to
	// remove signatures. A rejection with an OPT record may be a copy of the query's record, or concern an option.
	last := e.lastEDNS.Load()
	supported := last > 0 && now < last+int64(ednsOffTime)
	if wishes && (supported || a.EDNS && q.HasOptions()) {
		return a, setup, nil
	}
	again, more, err := e.sender.Exchange(ctx, q.WithoutEDNS(), n, path)
	if err != nil || isEDNSRejected(again) {
		return a, setup, nil
	}
	if !wishes && !supported {
		e.ednsOffUntil.Store(time.Now().Add(ednsOffTime).UnixNano())
	}
	return again, setup + more, nil
}

// isEDNSRejected reports whether the server seems not to have understood the query because of EDNS: the response code
// is FORMERR, or NOTIMP without an OPT record.
func isEDNSRejected(a *wire.Answer) bool {
	return a.Rcode() == dns.RcodeFormatError || a.Rcode() == dns.RcodeNotImplemented && !a.EDNS
}

// A possiblyReceivedError wraps the error of a message that must not be sent twice and that the server may have
// received.
type possiblyReceivedError struct{ error }

func (e *possiblyReceivedError) Unwrap() error { return e.error }

// MayBeReceived reports whether err means that the server may have received the message, although no response came. The
// message must then not be sent again. It only returns true for messages with an opcode other than QUERY.
func MayBeReceived(err error) bool {
	var written *possiblyReceivedError
	return errors.As(err, &written)
}
