// Package httpattempt creates the parts of an HTTP call that differ between its attempts. These are the request and its
// body, the trace hooks that record the connection, and the connection pool. The package does not decide which attempts
// are made or which attempt wins.
package httpattempt

import (
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A Pools selects the RoundTripper, and so the connection pool, for each attempt of one client's calls. It is safe for
// concurrent use. For a nil Pools, Primary returns nil.
type Pools struct {
	primaryTransport http.RoundTripper  // sends primaries
	hedgeTransport   http.RoundTripper  // sends hedges; set by the program; nil if not set
	separate         *separateTransport // clone of primaryTransport for hedges; nil if primaryTransport is not an *http.Transport
	replicas         *replicaPools      // pools with connections to other addresses of a host; nil if there is no Resolver
}

// NewPools returns the Pools of a client whose primaries are sent by the RoundTripper next. If via is not nil, via
// sends all hedges. Otherwise hedges are sent by next, or by a copy of next with a separate connection pool if next is
// an *http.Transport, see Hedge.
//
// The Resolver r is used only for such copies: if r is not nil, hedges connect to other addresses of the host than the
// primary.
func NewPools(next, via http.RoundTripper, r Resolver) *Pools {
	p := &Pools{primaryTransport: next, hedgeTransport: via}
	if base, ok := next.(*http.Transport); ok {
		p.separate = &separateTransport{base: base}
		if r != nil && via == nil {
			p.replicas = &replicaPools{resolver: r, clone: func() *http.Transport { return CloneTransport(base) }}
		}
	}
	return p
}

// PrimaryTransport returns the RoundTripper that sends primaries, or nil for a nil Pools.
func (p *Pools) PrimaryTransport() http.RoundTripper {
	if p == nil {
		return nil
	}
	return p.primaryTransport
}

// NeedsPeer reports whether hedges must connect to another address than the primary. The caller must then pass the
// address of the primary's connection to Hedge.
func (p *Pools) NeedsPeer() bool { return p.replicas != nil }

// HedgeTransport returns the RoundTripper that sends the hedge r. The caller must set shares to true if requests may share a
// connection, as over HTTP/2. In that case the RoundTripper has a separate connection pool if possible, so that the
// hedge does not share the primary's connection.
//
// The argument peer holds the address of the primary's connection, which the hedge avoids if NeedsPeer returns true. A
// nil peer means that the address is unknown.
func (p *Pools) HedgeTransport(r *http.Request, shares bool, peer *Peer) http.RoundTripper {
	switch {
	case p.hedgeTransport != nil:
		return p.hedgeTransport
	case p.separate == nil:
		return p.primaryTransport
	}
	usesReplica := p.replicas != nil && !p.separate.hasOwnTLSDialer(r.URL.Scheme) && !p.separate.mayUseProxy(r)
	switch {
	case !usesReplica && !shares && p.separate.base.MaxConnsPerHost <= 0, !p.separate.sendsLikeBase(r.URL.Scheme):
		return p.primaryTransport
	case usesReplica:
		return p.replicas.transportAvoiding(peer.address())
	default:
		return p.separate.transport()
	}
}

// HasDefaultHeaderLimit reports whether primaries are sent by an [http.Transport] with the default limit for the size
// of response headers. The same then holds for hedges, unless the program has set their RoundTripper. The result is
// false if the limit is unknown.
func (p *Pools) HasDefaultHeaderLimit() bool {
	return p.separate != nil && p.separate.base.MaxResponseHeaderBytes <= 0 && !hasRegisteredProtocol(p.separate.base, "http") && !hasRegisteredProtocol(p.separate.base, "https")
}

// CloseIdleConns closes the idle connections of all pools of p. It does nothing for a nil Pools.
func (p *Pools) CloseIdleConns() {
	if p == nil {
		return
	}
	closeIdleConns(p.primaryTransport)
	closeIdleConns(p.hedgeTransport)
	if p.separate != nil {
		p.separate.closeIdleConns()
	}
	if p.replicas != nil {
		p.replicas.closeIdleConns(nil)
	}
}

// closeIdleConns closes the idle connections of rt by its method CloseIdleConnections. If rt has no such method, it
// looks for a wrapped RoundTripper by the method WrappedRoundTripper, and closes the idle connections of that. If rt
// has neither method or is nil, closeIdleConns does nothing.
func closeIdleConns(rt http.RoundTripper) {
	for rt != nil {
		switch t := rt.(type) {
		case interface{ CloseIdleConnections() }:
			t.CloseIdleConnections()
			return
		case interface{ WrappedRoundTripper() http.RoundTripper }:
			rt = t.WrappedRoundTripper()
		default:
			return
		}
	}
}

// A separateTransport provides a clone of an *http.Transport, so that hedges can use other connections than primaries.
// The clone has the same settings and its own connections. It is created on first use. A separateTransport is safe for
// concurrent use.
type separateTransport struct {
	base *http.Transport

	once   sync.Once                      // creates the clone
	cloned atomic.Pointer[http.Transport] // the clone; nil until its first use
}

// transport returns the clone of base. The first call creates the clone; later calls return the same clone.
func (a *separateTransport) transport() *http.Transport {
	a.once.Do(func() { a.cloned.Store(CloneTransport(a.base)) })
	return a.cloned.Load()
}

// sendsLikeBase reports whether the clone sends requests with the given URL scheme in the same way as base. The result
// is false if the program has called RegisterProtocol on base for this scheme, because Clone does not copy registered
// protocols.
func (a *separateTransport) sendsLikeBase(scheme string) bool {
	return (scheme == "http" || scheme == "https") && !hasRegisteredProtocol(a.base, scheme)
}

// hasOwnTLSDialer reports whether the program has set the function that base calls to connect for the given URL scheme:
// DialTLSContext or DialTLS. The result is false if the scheme is not https.
func (a *separateTransport) hasOwnTLSDialer(scheme string) bool {
	return scheme == "https" && (a.base.DialTLSContext != nil || a.base.DialTLS != nil) //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
}

// mayUseProxy reports whether base sends r to a proxy. The result is true also if the Proxy function of base returns an
// error.
func (a *separateTransport) mayUseProxy(r *http.Request) bool {
	if a.base.Proxy == nil {
		return false
	}
	u, err := a.base.Proxy(r)
	return u != nil || err != nil
}

// closeIdleConns closes the idle connections of the clone, if there is a clone.
func (a *separateTransport) closeIdleConns() {
	if c := a.cloned.Load(); c != nil {
		c.CloseIdleConnections()
	}
}

// CloneTransport returns a clone of base that shares no connections with it. The clone supports HTTP/2 if base does.
// Protocols that were registered by base.RegisterProtocol are not copied.
func CloneTransport(base *http.Transport) *http.Transport {
	c := base.Clone() // also initializes the protocols of base
	if base.TLSNextProto["h2"] == nil {
		return c
	}
	// Clone copies the TLS configuration that HTTP/2 made in base. A Transport with its own TLS
	// configuration uses HTTP/2 only if ForceAttemptHTTP2 is set. If golang.org/x/net/http2 has configured
	// base, Clone copies that as well, and with it the connections.
	c.ForceAttemptHTTP2 = true
	if c.TLSNextProto != nil {
		c.TLSNextProto = maps.Clone(c.TLSNextProto)
		delete(c.TLSNextProto, "h2")
		if c.Protocols == nil { // otherwise the missing h2 in TLSNextProto would disable HTTP/2
			c.Protocols = new(http.Protocols)
			c.Protocols.SetHTTP1(true)
			c.Protocols.SetHTTP2(true)
		}
	}
	return c
}

// altProtoField is the unexported field of [http.Transport] that holds the RoundTrippers registered by RegisterProtocol. The
// variable hasAltProtoField is false if this version of net/http has no such field.
var altProtoField, hasAltProtoField = reflect.TypeFor[http.Transport]().FieldByName("altProto")

// hasRegisteredProtocol reports whether the program has called RegisterProtocol on base for the given URL scheme. It
// does not count the RoundTripper that net/http itself registers for HTTP/2.
//
// It reads an unexported field, because net/http has no function that reports registered protocols. It returns false if
// a future version of net/http has no such field.
func hasRegisteredProtocol(base *http.Transport, scheme string) bool {
	if !hasAltProtoField || altProtoField.Type != reflect.TypeFor[atomic.Value]() {
		return false
	}
	table := (*atomic.Value)(unsafe.Add(unsafe.Pointer(base), altProtoField.Offset)) // atomic, because RegisterProtocol may write it concurrently
	protocols, _ := table.Load().(map[string]http.RoundTripper)
	rt, ok := protocols[scheme]
	if !ok || rt == nil {
		return ok
	}
	name := reflect.Indirect(reflect.ValueOf(rt)).Type().Name()
	return name != "noDialH2RoundTripper" && name != "http2noDialH2RoundTripper"
}
