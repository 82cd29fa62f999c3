// Package httpattempt makes the parts of an HTTP call that each attempt has of its own: the request and its body, the
// trace hooks that record its connection, and its connection pool. It does not decide which attempts are made or which
// attempt wins.
package httpattempt

import (
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A Pools selects the connection pool of each attempt of one client. It is safe for concurrent use. For a nil Pools,
// Primary returns nil.
type Pools struct {
	primaryTransport http.RoundTripper  // RoundTripper of primaries
	hedgeTransport   http.RoundTripper  // RoundTripper of hedges, set by the program; nil: not set
	separate         *separateTransport // clone of the primaries' transport, for hedges; nil: that transport is no *http.Transport
	replicas         *replicaPools      // pools with connections to other addresses of a host; nil: not enabled
}

// NewPools returns the Pools of a client whose primaries use next. Hedges use via if it is not nil. Otherwise, if next
// is an *http.Transport, hedges use a separate pool where that ensures another connection than the primary's. With a
// Resolver, these connections go to other addresses of the host.
func NewPools(next, via http.RoundTripper, r Resolver) *Pools {
	p := &Pools{primaryTransport: next, hedgeTransport: via}
	if base, ok := next.(*http.Transport); ok {
		p.separate = &separateTransport{base: base}
		if r != nil && via == nil {
			p.replicas = &replicaPools{resolver: r, clone: p.separate.clone}
		}
	}
	return p
}

// Primary returns the RoundTripper of primaries, or nil for a nil Pools.
func (p *Pools) Primary() http.RoundTripper {
	if p == nil {
		return nil
	}
	return p.primaryTransport
}

// NeedsPeer reports whether Hedge needs the address of the primary's connection.
func (p *Pools) NeedsPeer() bool { return p.replicas != nil }

// Hedge returns the RoundTripper of the hedge r. If shares is true, requests may share a connection, as over HTTP/2,
// and the hedge gets another connection than the primary. The peer is the primary's address, or nil if it is unknown.
func (p *Pools) Hedge(r *http.Request, shares bool, peer *Peer) http.RoundTripper {
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

// HasDefaultHeaderLimit reports whether primaries, and hedges without a RoundTripper set by the program, use an
// [http.Transport] with the default limit for response headers. It reports false if the limit is unknown.
func (p *Pools) HasDefaultHeaderLimit() bool {
	return p.separate != nil && p.separate.base.MaxResponseHeaderBytes <= 0 && !hasRegisteredProtocol(p.separate.base, "http") && !hasRegisteredProtocol(p.separate.base, "https")
}

// CloseIdleConns closes the idle connections of all pools. If a RoundTripper has no method CloseIdleConnections, it
// uses the RoundTripper that the method WrappedRoundTripper returns, if there is one.
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

// A separateTransport holds a clone of an *http.Transport, with the same settings and connections of its own. The clone
// is created on first use.
type separateTransport struct {
	base *http.Transport

	once   sync.Once // creates the clone
	cloned atomic.Pointer[http.Transport]
}

// transport returns the clone of base.
func (a *separateTransport) transport() *http.Transport {
	a.once.Do(func() { a.cloned.Store(a.clone()) })
	return a.cloned.Load()
}

// sendsLikeBase reports whether the clone sends requests of the scheme in the same way as base. It does not if a
// protocol was registered with base (RegisterProtocol), because Clone does not copy it.
func (a *separateTransport) sendsLikeBase(scheme string) bool {
	return (scheme == "http" || scheme == "https") && !hasRegisteredProtocol(a.base, scheme)
}

// hasOwnTLSDialer reports whether base dials connections of the scheme by DialTLSContext or DialTLS.
func (a *separateTransport) hasOwnTLSDialer(scheme string) bool {
	return scheme == "https" && (a.base.DialTLSContext != nil || a.base.DialTLS != nil) //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
}

// mayUseProxy reports whether base sends r to a proxy. It is true if the Proxy function of base fails.
func (a *separateTransport) mayUseProxy(r *http.Request) bool {
	if a.base.Proxy == nil {
		return false
	}
	u, err := a.base.Proxy(r)
	return u != nil || err != nil
}

func (a *separateTransport) closeIdleConns() {
	if c := a.cloned.Load(); c != nil {
		c.CloseIdleConnections()
	}
}

// clone returns a new clone of base that supports HTTP/2 if base does.
func (a *separateTransport) clone() *http.Transport {
	c := a.base.Clone()
	if a.base.TLSNextProto["h2"] == nil {
		return c
	}
	// Clone copies the TLS configuration that HTTP/2 made in base, and a Transport with one
	// of its own speaks HTTP/2 only if told to. If golang.org/x/net/http2 has configured
	// base, Clone copies that as well, and with it the connections.
	c.ForceAttemptHTTP2 = true
	if c.TLSNextProto != nil {
		c.TLSNextProto = maps.Clone(c.TLSNextProto)
		delete(c.TLSNextProto, "h2")
		if c.Protocols == nil { // or it would say that HTTP/2 is not wanted
			c.Protocols = new(http.Protocols)
			c.Protocols.SetHTTP1(true)
			c.Protocols.SetHTTP2(true)
		}
	}
	return c
}

// altProto is the unexported field of http.Transport with the RoundTrippers that RegisterProtocol stores.
var altProto, hasAltProto = reflect.TypeFor[http.Transport]().FieldByName("altProto")

// hasRegisteredProtocol reports whether the program has registered a RoundTripper for the scheme with base. It ignores
// the entry of net/http for HTTP/2. It reads an unexported field, because net/http exports no such query. It reports
// false if a future version of net/http has no such field.
func hasRegisteredProtocol(base *http.Transport, scheme string) bool {
	if !hasAltProto || altProto.Type != reflect.TypeFor[atomic.Value]() {
		return false
	}
	table := (*atomic.Value)(unsafe.Add(unsafe.Pointer(base), altProto.Offset)) // which RegisterProtocol may be writing
	protocols, _ := table.Load().(map[string]http.RoundTripper)
	rt, ok := protocols[scheme]
	if !ok || rt == nil {
		return ok
	}
	name := reflect.Indirect(reflect.ValueOf(rt)).Type().Name()
	return name != "noDialH2RoundTripper" && name != "http2noDialH2RoundTripper"
}
