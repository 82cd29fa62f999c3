package hedge

import (
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
)

// secondPool is a clone of an *http.Transport: with the same settings, and connections of
// its own. It is made when first needed.
type secondPool struct {
	base *http.Transport

	once       sync.Once
	made       atomic.Pointer[http.Transport]
	registered map[string]bool // schemes that base passes to another RoundTripper
}

// get returns the clone.
func (p *secondPool) get() *http.Transport {
	p.once.Do(func() {
		c := p.clone()
		p.registered = registered(p.base)
		p.made.Store(c)
	})
	return p.made.Load()
}

// serves reports whether a clone would send a request of that scheme as base does. What is
// registered with base (RegisterProtocol) is not registered with its clones.
func (p *secondPool) serves(scheme string) bool {
	p.get()
	return (scheme == "http" || scheme == "https") && !p.registered[scheme]
}

// proxied reports whether base sends r to a proxy, or cannot say.
func (p *secondPool) proxied(r *http.Request) bool {
	if p.base.Proxy == nil {
		return false
	}
	u, err := p.base.Proxy(r)
	return u != nil || err != nil
}

func (p *secondPool) closeIdle() {
	if c := p.made.Load(); c != nil {
		c.CloseIdleConnections()
	}
}

// clone returns a new clone of base.
func (p *secondPool) clone() *http.Transport {
	c := p.base.Clone()
	if p.base.TLSNextProto["h2"] == nil {
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

// registered returns the schemes for which another RoundTripper was registered with base,
// but for those of HTTP/2's own making. net/http has no way to ask; if this does not find
// the field any more, it returns none. Clone must have been called before: it waits for
// base's own writing to that field.
func registered(base *http.Transport) map[string]bool {
	schemes := make(map[string]bool)
	protocols := reflect.ValueOf(base).Elem().FieldByName("altProto") // an atomic.Value
	if protocols.Kind() != reflect.Struct {
		return schemes
	}
	if protocols = protocols.FieldByName("v"); protocols.Kind() != reflect.Interface {
		return schemes
	}
	if protocols = protocols.Elem(); protocols.Kind() != reflect.Map {
		return schemes
	}
	for i := protocols.MapRange(); i.Next(); {
		name := i.Value().Elem().Type().Name()
		if name != "noDialH2RoundTripper" && name != "http2noDialH2RoundTripper" {
			schemes[i.Key().String()] = true
		}
	}
	return schemes
}
