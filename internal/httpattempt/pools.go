// Package httpattempt makes what each attempt of an HTTP call has for itself: its request and
// its body, the hooks that tell of its connection, and the pool that its connection comes from.
// Which attempts there are, and which one wins, it does not know.
package httpattempt

import (
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Pools are the pools of connections that attempts go through. They are safe for concurrent
// use. A nil *Pools has none: its Primary is nil.
type Pools struct {
	next     http.RoundTripper
	via      http.RoundTripper // given for hedges; nil: none is
	apart    *apart            // nil: next is no *http.Transport
	replicas *replicas         // pools of connections to other addresses; nil: not asked for
}

// NewPools returns the pools for primaries that go through next. Hedges go through via or, if
// that is nil and next is an *http.Transport, through pools of their own where that helps; to
// other addresses than the primaries' if there is a resolver that knows them.
func NewPools(next, via http.RoundTripper, r Resolver) *Pools {
	p := &Pools{next: next, via: via}
	if base, ok := next.(*http.Transport); ok {
		p.apart = &apart{base: base}
		if r != nil && via == nil {
			p.replicas = &replicas{resolver: r, clone: p.apart.clone}
		}
	}
	return p
}

// Primary returns what primaries go through.
func (p *Pools) Primary() http.RoundTripper {
	if p == nil {
		return nil
	}
	return p.next
}

// AskPeers reports whether Hedge must be told which address the primary went to.
func (p *Pools) AskPeers() bool { return p.replicas != nil }

// Hedge returns what hedge r goes through, whose primary went to peer, which may be nil. Shares says
// that requests may share a connection, as over HTTP/2: a hedge then goes over another
// connection than its primary's.
func (p *Pools) Hedge(r *http.Request, shares bool, peer *Peer) http.RoundTripper {
	switch {
	case p.via != nil:
		return p.via
	case p.apart == nil:
		return p.next
	}
	elsewhere := p.replicas != nil && !p.apart.choosesItself(r.URL.Scheme) && !p.apart.proxied(r)
	switch {
	case !elsewhere && !shares && p.apart.base.MaxConnsPerHost <= 0, !p.apart.serves(r.URL.Scheme):
		return p.next
	case elsewhere:
		return p.replicas.avoiding(peer.get())
	default:
		return p.apart.get()
	}
}

// HasDefaultHeaderLimit reports whether primaries, and hedges that go the same way, are sent by an [http.Transport] that bounds the headers
// of responses by net/http's default. It reports false if that cannot be told.
func (p *Pools) HasDefaultHeaderLimit() bool {
	return p.apart != nil && p.apart.base.MaxResponseHeaderBytes <= 0 && !registered(p.apart.base, "http") && !registered(p.apart.base, "https")
}

// CloseIdle closes the idle connections of all pools. If a RoundTripper cannot do so and has a
// method WrappedRoundTripper, that one's result is tried.
func (p *Pools) CloseIdle() {
	if p == nil {
		return
	}
	closeIdle(p.next)
	closeIdle(p.via)
	if p.apart != nil {
		p.apart.closeIdle()
	}
	if p.replicas != nil {
		p.replicas.closeIdle(nil)
	}
}

func closeIdle(rt http.RoundTripper) {
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

// apart is a clone of an *http.Transport: the same settings, and connections of its own. It is
// made when it is first needed.
type apart struct {
	base *http.Transport

	once sync.Once // sets made
	made atomic.Pointer[http.Transport]
}

// get returns the clone.
func (a *apart) get() *http.Transport {
	a.once.Do(func() { a.made.Store(a.clone()) })
	return a.made.Load()
}

// serves reports whether a clone would send a request of that scheme as base does. What is
// registered with base (RegisterProtocol), by now, is not registered with its clones.
func (a *apart) serves(scheme string) bool {
	return (scheme == "http" || scheme == "https") && !registered(a.base, scheme)
}

// choosesItself reports whether base dials for the scheme with what speaks TLS as well, instead of by DialContext.
func (a *apart) choosesItself(scheme string) bool {
	return scheme == "https" && (a.base.DialTLSContext != nil || a.base.DialTLS != nil) //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
}

// proxied reports whether base sends r to a proxy, or cannot say.
func (a *apart) proxied(r *http.Request) bool {
	if a.base.Proxy == nil {
		return false
	}
	u, err := a.base.Proxy(r)
	return u != nil || err != nil
}

func (a *apart) closeIdle() {
	if c := a.made.Load(); c != nil {
		c.CloseIdleConnections()
	}
}

// clone returns a new clone of base.
func (a *apart) clone() *http.Transport {
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

// altProto is net/http's table of RoundTrippers that are registered with a Transport.
var altProto, hasAltProto = reflect.TypeFor[http.Transport]().FieldByName("altProto")

// registered reports whether another RoundTripper than HTTP/2's own was registered with base for
// the scheme. net/http has no way to ask, so this reads its table, as net/http itself does. If
// that has another name or type one day, the answer is no.
func registered(base *http.Transport, scheme string) bool {
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
