package names

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"
)

const (
	// closingTime is how long requests make their connections close, from the first on, after one to an
	// address that left was used, or the address left: so those are used up.
	closingTime = 2 * time.Second

	// closing is how long a connection may stay open that a request closes. One that is still open is
	// drained anew: the request takes long, or was given up before net/http had marked the connection.
	closing = time.Minute

	// rotationDelay is how long an address must have left if addresses of the host come and go: its
	// name servers then hand out a part of a larger set, and it is still in that.
	rotationDelay = 5 * time.Minute

	// cannotRewind is the error of net/http for a request that it would send again.
	cannotRewind = "net/http: cannot rewind body after connection loss"

	// maxResends is how often a request is sent again at most.
	maxResends = 100
)

// Drain returns a RoundTripper that sends requests by rt, whose connections DialContext makes, and
// closes those to addresses that their host has no more. Requests that are under way are never
// disturbed.
//
// When an address has left, Drain closes the idle connections of rt, which net/http does for all
// hosts at once, and again after one second, two, four and so on while there are connections to such
// addresses. Meanwhile requests to the host are sent with Request.Close, by which busy connections
// end with the request that they have, and HTTP/2 connections with their last request; an HTTP/1.1
// server sees "Connection: close". Requests through a proxy are not, and neither are those whose URL
// has a host that is not ASCII. A request whose connection closes before its body was read is sent again.
//
// If three lookups within ten minutes find addresses again that had left, the host's name servers
// seem to hand out a part of a larger set each time. Then its addresses leave only when they were
// in no answer for five minutes.
//
// Drain is called once for each rt, which is an *http.Transport or has one below it, as package
// hedge's does. Its CloseIdleConnections is called if it has that method; a panic of that is dropped, since no
// caller could recover it. The Names keeps rt.
func (n *Names) Drain(rt http.RoundTripper) http.RoundTripper {
	n.init()
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		n.mu.Lock()
		n.drains = append(n.drains, c)
		n.mu.Unlock()
	}
	return &drainingTransport{n, rt}
}

type drainingTransport struct {
	n  *Names
	rt http.RoundTripper
}

func (d *drainingTransport) CloseIdleConnections() {
	if c, ok := d.rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (d *drainingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Close || req.URL == nil || len(req.Header["Upgrade"]) > 0 {
		return d.rt.RoundTrip(req)
	}
	name := req.URL.Hostname()
	closes, ok := d.n.shouldClose(name)
	once := req.Body != nil && req.Body != http.NoBody && req.GetBody == nil
	shared := d.n.returned.shared.Load() > 0
	if !ok && !once && !shared {
		return d.rt.RoundTrip(req)
	}
	ctx := req.Context()
	if shared {
		ctx = context.WithValue(ctx, hostKey{}, name)
	}
	if ok {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) { d.n.recordUse(info.Conn, name, closes) },
		})
	}
	own := req.WithContext(ctx)
	own.Close = closes
	var b *retryableBody
	var resp *http.Response
	var err error
	if once {
		b = &retryableBody{ReadCloser: req.Body}
		own.Body = b
		defer func() { b.recordReturned(err) }() // also if rt panics
	}
	resp, err = d.rt.RoundTrip(own)
	for again := 0; once && again < maxResends && b.resetIfRetryable(err); again++ {
		b = &retryableBody{ReadCloser: req.Body}
		own = own.WithContext(ctx)
		own.Body = b
		resp, err = d.rt.RoundTrip(own)
	}
	if resp != nil && resp.Request == own {
		resp.Request = req
	}
	return resp, err
}

// retryableBody is a request's body that can be read only once. A draining connection may refuse the request. Then
// net/http closes the unread body, and needs it again for another connection (HTTP/2, Go 1.26). So until RoundTrip
// returns, Close does nothing to an unread body, and the request is sent again. It gets no GetBody, because lower
// RoundTrippers would rely on that.
type retryableBody struct {
	io.ReadCloser

	mu     sync.Mutex // guards the fields below, and that above
	read   bool
	closed bool // without effect
	over   bool // RoundTrip has returned
}

func (b *retryableBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.read = true
	from := b.ReadCloser
	b.mu.Unlock()
	return from.Read(p)
}

func (b *retryableBody) Close() error {
	b.mu.Lock()
	later := !b.read && !b.over
	b.closed = b.closed || later
	from := b.ReadCloser
	b.mu.Unlock()
	if later {
		return nil
	}
	return from.Close()
}

// resetIfRetryable reports whether err is net/http's for a request that could be sent again if it had its
// body, and the body has not been read. Then b is another, empty body.
func (b *retryableBody) resetIfRetryable(err error) bool {
	if err == nil || err.Error() != cannotRewind {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read {
		return false
	}
	b.ReadCloser = http.NoBody
	return true
}

// recordReturned makes up for a Close without effect, and for one that was forgotten after an error.
func (b *retryableBody) recordReturned(err error) {
	b.mu.Lock()
	b.over = true
	closes := b.closed || err != nil && !b.read
	from := b.ReadCloser
	b.mu.Unlock()
	if closes {
		_ = from.Close()
	}
}

// shouldClose reports whether a host has connections that are to be drained, and whether a
// request to it should close its own.
func (n *Names) shouldClose(name string) (closes, ok bool) {
	if n.drainingHosts.Load() == 0 {
		return false, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[canonicalHost(name)]
	if h == nil || !h.draining {
		return false, false
	}
	now := time.Now()
	if h.closesNext {
		h.closesNext, h.closeUntil = false, now.Add(closingTime)
	}
	return now.Before(h.closeUntil), true
}

// recordUse notes that a request to a host uses a connection, which it closes or not.
func (n *Names) recordUse(c net.Conn, name string, closes bool) {
	t := trackingOf(c)
	if t == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h, now := n.hosts[canonicalHost(name)], time.Now()
	if !slices.Contains(t.hosts, h) {
		return
	}
	a := h.addrs[t.ip]
	if a == nil || !h.shouldDrain(a, now) {
		return
	}
	if t.closes = (time.Time{}); closes {
		t.closes = now
	} else { // nor did the request before, if that should have closed it
		h.closesNext = true
	}
	h.updateDraining(now)
}

// trackingOf returns the tracking of a connection that DialContext made, or that wraps one, as a TLS connection does.
// It returns nil for other connections.
func trackingOf(c net.Conn) *connTracking {
	for {
		switch t := c.(type) {
		case interface{ self() *connTracking }:
			return t.self()
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// shouldDrain reports whether connections to an address of the host are to be drained.
func (h *host) shouldDrain(a *hostAddress, now time.Time) bool {
	if a.removedAt.IsZero() {
		return false
	}
	return now.Sub(h.returnTimes[2]) >= removedMemory || now.Sub(a.removedAt) >= rotationDelay
}

// startDraining begins to drain the connections to addresses that have left.
func (h *host) startDraining(now time.Time) {
	if h.updateDraining(now); h.draining {
		h.closesNext = true
		h.sweepInterval = time.Second
		h.sweepAfter(0)
	}
}

// updateDraining notes whether the host has connections that are to be drained and that no request closes.
func (h *host) updateDraining(now time.Time) {
	draining := h.hasConnsToDrain(now)
	if draining == h.draining {
		return
	}
	h.draining = draining
	if draining {
		h.n.drainingHosts.Add(1)
	} else {
		h.n.drainingHosts.Add(-1)
	}
}

func (h *host) hasConnsToDrain(now time.Time) bool {
	for _, a := range h.addrs {
		if !h.shouldDrain(a, now) {
			continue
		}
		for t := range a.conns {
			if now.Sub(t.closes) >= closing {
				return true
			}
		}
	}
	return false
}

// sweepAfter closes idle connections after d, and again until the host has none to drain.
func (h *host) sweepAfter(d time.Duration) {
	if h.sweepTimer != nil {
		h.sweepTimer.Stop()
	}
	h.sweepTimer = time.AfterFunc(d, func() {
		h.n.mu.Lock()
		h.updateDraining(time.Now())
		if !h.draining || h.n.closed {
			h.n.mu.Unlock()
			return
		}
		drains := h.n.drains
		h.sweepAfter(h.sweepInterval)
		h.sweepInterval *= 2
		h.n.wg.Add(1)
		h.n.mu.Unlock()
		defer h.n.wg.Done()
		for _, c := range drains {
			runRecovered(c.CloseIdleConnections)
		}
	})
}
