// Package httpattempt makes the parts of an HTTP call that each attempt has for itself: its request and body, the trace hooks that report its
// connection, and the pool of connections that it uses. It does not decide which attempts are made or which one wins.
package httpattempt

import (
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Pools are the pools of connections of one client. They are safe for concurrent use. A nil *Pools has none: its Primary is nil.
type Pools struct {
	next     http.RoundTripper  // of primaries
	via      http.RoundTripper  // of hedges, given by the program; nil: none
	separate *separateTransport // for hedges; nil: next is no *http.Transport
	replicas *replicas          // pools of connections to other addresses of a host; nil: not wanted
}

// NewPools returns pools whose primaries use next. Hedges use via. If via is nil and next is an *http.Transport, they use pools of their own where another
// connection than that of the primary helps; with a resolver, these connect to other addresses than the primary.
func NewPools(next, via http.RoundTripper, r Resolver) *Pools {
	p := &Pools{next: next, via: via}
	if base, ok := next.(*http.Transport); ok {
		p.separate = &separateTransport{base: base}
		if r != nil && via == nil {
			p.replicas = &replicas{resolver: r, clone: p.separate.clone}
		}
	}
	return p
}

// Primary returns the RoundTripper of primaries.
func (p *Pools) Primary() http.RoundTripper {
	if p == nil {
		return nil
	}
	return p.next
}

// NeedsPeer reports whether Hedge needs the address that the primary went to.
func (p *Pools) NeedsPeer() bool { return p.replicas != nil }

// Hedge returns the RoundTripper of the hedge r. The primary went to peer, which may be nil. If shares is true, requests may share a connection, as
// over HTTP/2: the hedge then uses another connection than its primary.
func (p *Pools) Hedge(r *http.Request, shares bool, peer *Peer) http.RoundTripper {
	switch {
	case p.via != nil:
		return p.via
	case p.separate == nil:
		return p.next
	}
	elsewhere := p.replicas != nil && !p.separate.hasOwnTLSDialer(r.URL.Scheme) && !p.separate.mayUseProxy(r)
	switch {
	case !elsewhere && !shares && p.separate.base.MaxConnsPerHost <= 0, !p.separate.sendsLikeBase(r.URL.Scheme):
		return p.next
	case elsewhere:
		return p.replicas.transportAvoiding(peer.address())
	default:
		return p.separate.transport()
	}
}

// HasDefaultHeaderLimit reports whether primaries, and hedges without a RoundTripper of their own, use an [http.Transport] with the default limit for
// response headers. It reports false if that is not known.
func (p *Pools) HasDefaultHeaderLimit() bool {
	return p.separate != nil && p.separate.base.MaxResponseHeaderBytes <= 0 && !hasRegisteredProtocol(p.separate.base, "http") && !hasRegisteredProtocol(p.separate.base, "https")
}

// CloseIdleConns closes the idle connections of all pools. For a RoundTripper that cannot do so, it tries the result of its method WrappedRoundTripper.
func (p *Pools) CloseIdleConns() {
	if p == nil {
		return
	}
	closeIdleConns(p.next)
	closeIdleConns(p.via)
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

// A separateTransport is a clone of an *http.Transport: it has the same settings and its own connections. It is made when it is first needed.
type separateTransport struct {
	base *http.Transport

	once sync.Once // sets made
	made atomic.Pointer[http.Transport]
}

// transport returns the clone of base, and makes it in the first call.
func (a *separateTransport) transport() *http.Transport {
	a.once.Do(func() { a.made.Store(a.clone()) })
	return a.made.Load()
}

// sendsLikeBase reports whether the clone sends requests of the scheme as base does. A clone lacks the protocols that are registered with base
// (RegisterProtocol).
func (a *separateTransport) sendsLikeBase(scheme string) bool {
	return (scheme == "http" || scheme == "https") && !hasRegisteredProtocol(a.base, scheme)
}

// hasOwnTLSDialer reports whether base connects for the scheme by DialTLSContext or DialTLS instead of DialContext.
func (a *separateTransport) hasOwnTLSDialer(scheme string) bool {
	return scheme == "https" && (a.base.DialTLSContext != nil || a.base.DialTLS != nil) //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
}

// mayUseProxy reports whether base sends r to a proxy, or fails to tell.
func (a *separateTransport) mayUseProxy(r *http.Request) bool {
	if a.base.Proxy == nil {
		return false
	}
	u, err := a.base.Proxy(r)
	return u != nil || err != nil
}

func (a *separateTransport) closeIdleConns() {
	if c := a.made.Load(); c != nil {
		c.CloseIdleConnections()
	}
}

// clone returns a new clone of base.
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

// altProto is the table of net/http with the RoundTrippers that are registered with a Transport.
var altProto, hasAltProto = reflect.TypeFor[http.Transport]().FieldByName("altProto")

// hasRegisteredProtocol reports whether a RoundTripper other than that for HTTP/2 was registered with base for the scheme. net/http exports no such
// query, so the function reads the table altProto. It reports false if the table has another name or type in a future version.
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
