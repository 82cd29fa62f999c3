package names

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

const (
	// pushed is how long requests make their connections close after one to an address that left
	// was used, so that those are used up.
	pushed = 2 * time.Second

	// rotating is how long an address must have left if addresses of the host come and go: its
	// name servers then hand out a part of a larger set, and it is still in that.
	rotating = 5 * time.Minute
)

// Drain returns a RoundTripper that sends requests by rt, whose connections DialContext makes, and
// closes those to addresses that their host has no more. Requests that are under way are never
// disturbed.
//
// When an address has left, Drain closes the idle connections of rt, which net/http does for all
// hosts at once, and again after one second, two, four and so on while there are connections to such
// addresses. Meanwhile requests to the host are sent with Request.Close, by which busy connections
// end with the request that they have, and HTTP/2 connections with their last request; an HTTP/1.1
// server sees "Connection: close". Requests through a proxy are not.
//
// If an address comes back within ten minutes after it left, the host's name servers seem to hand
// out a part of a larger set each time. Then its addresses leave only when they were not in any
// answer for five minutes.
//
// Drain is called once for each rt, which is an *http.Transport or has one below it, as package
// hedge's does. Its CloseIdleConnections is called if it has that method. The Names keeps rt.
func (n *Names) Drain(rt http.RoundTripper) http.RoundTripper {
	n.init()
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		n.mu.Lock()
		n.drains = append(n.drains, c)
		n.mu.Unlock()
	}
	return &drained{n, rt}
}

type drained struct {
	n  *Names
	rt http.RoundTripper
}

func (d *drained) CloseIdleConnections() {
	if c, ok := d.rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (d *drained) RoundTrip(req *http.Request) (*http.Response, error) {
	if d.n.leaving.Load() == 0 || req.Close || req.URL == nil || len(req.Header["Upgrade"]) > 0 {
		return d.rt.RoundTrip(req)
	}
	closes, ok := d.n.closes(req.URL.Hostname())
	if !ok {
		return d.rt.RoundTrip(req)
	}
	own := req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { d.n.used(info.Conn, closes) },
	}))
	own.Close = closes
	resp, err := d.rt.RoundTrip(own)
	if resp != nil && resp.Request == own {
		resp.Request = req
	}
	return resp, err
}

// closes reports whether a host has connections that are to be drained, and whether a
// request to it should close its own.
func (n *Names) closes(name string) (closes, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[canonical(name)]
	if h == nil || !h.draining {
		return false, false
	}
	return time.Now().Before(h.push), true
}

// used notes that a request uses a connection, which it closes or not.
func (n *Names) used(c net.Conn, closes bool) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, ok := c.(interface{ tracking() *tracking })
	if !ok {
		return
	}
	t := own.tracking()
	n.mu.Lock()
	defer n.mu.Unlock()
	h, now := t.h, time.Now()
	a := h.addrs[t.ip]
	if a == nil || !h.leaves(a, now) {
		return
	}
	if t.closes = closes; !closes { // nor did the request before, if that should have closed it
		h.push = now.Add(pushed)
	}
	h.count(now)
}

// leaves reports whether connections to an address of the host are to be drained.
func (h *host) leaves(a *addr, now time.Time) bool {
	if a.left.IsZero() {
		return false
	}
	return h.rotates.IsZero() || now.Sub(h.rotates) >= memory || now.Sub(a.left) >= rotating
}

// drain begins to drain the connections to addresses that have left.
func (h *host) drain(now time.Time) {
	if h.count(now); h.draining {
		h.push = now.Add(pushed)
		h.gap = time.Second
		h.sweepAfter(0)
	}
}

// count notes whether the host has connections that are to be drained and that no request closes.
func (h *host) count(now time.Time) {
	draining := false
	for _, a := range h.addrs {
		if h.leaves(a, now) {
			for t := range a.conns {
				draining = draining || !t.closes
			}
		}
	}
	if draining == h.draining {
		return
	}
	h.draining = draining
	if draining {
		h.n.leaving.Add(1)
	} else {
		h.n.leaving.Add(-1)
	}
}

// sweepAfter closes idle connections after d, and again until the host has none to drain.
func (h *host) sweepAfter(d time.Duration) {
	if h.sweep != nil {
		h.sweep.Stop()
	}
	h.sweep = time.AfterFunc(d, func() {
		h.n.mu.Lock()
		h.count(time.Now())
		if !h.draining || h.n.closed {
			h.n.mu.Unlock()
			return
		}
		drains := h.n.drains
		h.sweepAfter(h.gap)
		h.gap *= 2
		h.n.wg.Add(1)
		h.n.mu.Unlock()
		defer h.n.wg.Done()
		for _, c := range drains {
			c.CloseIdleConnections()
		}
	})
}
