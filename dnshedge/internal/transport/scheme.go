package transport

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A Scheme describes a protocol over which queries can be sent, as a URL scheme selects it, for example "tls".
type Scheme struct {
	Name string                 // URL scheme
	RFC  int                    // number of the RFC that specifies the protocol; schemes are sorted by it
	Port string                 // default port of a server
	TLS  bool                   // servers are authenticated by a TLS certificate
	Path string                 // default URL path; empty: a URL must have no path
	New  func(Config) Transport // returns a Transport to a server; it opens no connection
}

// schemes holds the registered schemes by Name. It must only be changed during initialization.
var schemes = make(map[string]Scheme)

// registerScheme makes the scheme s available to FindScheme and Schemes. It must only be called by init functions.
//
// It sets s.New to a function that creates the Transport for a server, a schemeTransport with the result of newSender.
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
	// are those of Exchange. If err is not nil, written reports whether the server may have received q.
	SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// A schemeTransport is the Transport of a scheme. It sends messages with an opcode other than QUERY, for example UPDATE
// and NOTIFY, at most once, by sender.SendOnce. It repeats a query without EDNS if the server seems not to support EDNS
// (RFC 6891 §7).
//
// The server seems so if its response code is FORMERR, or NOTIMP without an OPT record. If the repetition succeeds,
// queries to the server have no EDNS for the time ednsOffTime.
//
// Queries with the DO bit (RFC 3225 §3) or EDNS options are always sent with EDNS first. They are repeated without EDNS
// only if no recent response of the server had an OPT record. So a forged FORMERR cannot remove signatures from
// answers.
type schemeTransport struct {
	sender
	ednsOffUntil atomic.Int64 // queries have no EDNS before this time, in Unix nanoseconds
	lastEDNS     atomic.Int64 // time of the last response with an OPT record, in Unix nanoseconds; 0: none
}

// Exchange implements Transport. It sends q without EDNS if the server has recently seemed not to support EDNS. If the
// server rejects a query with EDNS, it repeats the query without EDNS. If the repetition fails, it returns the first
// response.
//
// If it returns an error for a message that must not be repeated, MayBeReceived reports whether the server may have
// received that message.
func (e *schemeTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if !q.IsStandard() {
		a, setup, written, err := e.SendOnce(ctx, q, w)
		if err != nil && written {
			err = &mayBeReceivedError{err}
		}
		return a, setup, err
	}
	wishes := q.WantsDNSSEC() || q.HasOptions()
	now := time.Now().UnixNano()
	if !wishes && now < e.ednsOffUntil.Load() {
		return e.sender.Exchange(ctx, q.WithoutEDNS(), n, w)
	}
	a, setup, err := e.sender.Exchange(ctx, q, n, w)
	if err != nil {
		return a, setup, err
	}
	if !isRejected(a) {
		if a.EDNS {
			e.lastEDNS.Store(now)
		}
		return a, setup, nil
	}
	// The server may have copied the OPT record of the query. But it may also support EDNS and reject an option.
	if wishes && (now < e.lastEDNS.Load()+int64(ednsOffTime) && e.lastEDNS.Load() > 0 || a.EDNS && q.HasOptions()) {
		return a, setup, nil
	}
	again, more, err := e.sender.Exchange(ctx, q.WithoutEDNS(), n, w)
	if err != nil || isRejected(again) {
		return a, setup, nil
	}
	if !wishes {
		e.ednsOffUntil.Store(time.Now().Add(ednsOffTime).UnixNano())
		e.lastEDNS.Store(0)
	}
	return again, setup + more, nil
}

// isRejected reports whether the server seems not to have understood the query, because the response code is FORMERR,
// or NOTIMP without an OPT record.
func isRejected(a *wire.Answer) bool {
	return a.Rcode() == dns.RcodeFormatError || a.Rcode() == dns.RcodeNotImplemented && !a.EDNS
}

// A mayBeReceivedError wraps the error of a message that must not be sent twice and that the server may have received.
type mayBeReceivedError struct{ error }

func (e *mayBeReceivedError) Unwrap() error { return e.error }

// MayBeReceived reports whether err means that the server may have received the message, although no response came. The
// message must then not be sent again. It only returns true for messages with an opcode other than QUERY.
func MayBeReceived(err error) bool {
	var written *mayBeReceivedError
	return errors.As(err, &written)
}
