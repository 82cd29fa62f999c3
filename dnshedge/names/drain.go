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

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

const (
	// closingTime is how long requests to a host close their connections after the host has lost an address. The time
	// begins with the next request. It begins again if a request has used a connection to a lost address without
	// closing it.
	closingTime = 2 * time.Second

	// connCloseTime is the time in which a connection is expected to close after a request that closes it. A connection
	// that is open for longer counts as not drained: the request is slow, or was cancelled before net/http marked the
	// connection.
	connCloseTime = time.Minute

	// rotationDelay is how long an address must be absent from the answers before its connections are drained, if lost
	// addresses of the host often return. The host's name servers then return a part of a larger set, and the address
	// is still in that set.
	rotationDelay = 5 * time.Minute

	// cannotRewind is the error text of net/http for a request that could be sent again if its body could be read
	// again.
	cannotRewind = "net/http: cannot rewind body after connection loss"

	// maxResends limits how often a request is sent again.
	maxResends = 100
)

// Drain returns a RoundTripper that sends requests through rt, and closes connections to addresses that the host's last
// successful lookup did not find. Requests that are under way are not interrupted.
//
// rt must be an *http.Transport whose DialContext is n.DialContext, or a wrapper of one, for example of package hedge.
// Drain must be called once for each rt. n keeps rt in memory. See also the package comment.
func (n *Names) Drain(rt http.RoundTripper) http.RoundTripper {
	n.init()
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		n.mu.Lock()
		n.drains = append(n.drains, c)
		n.mu.Unlock()
	}
	return &drainingTransport{n, rt}
}

// A drainingTransport is the RoundTripper that Names.Drain returns. It sends requests through the RoundTripper rt.
// While a host has connections to addresses that the host has lost, requests to this host close their connections
// (decideClosing). Later requests then use new connections to its present addresses.
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
	closes, draining := d.n.decideClosing(name)
	once := req.Body != nil && req.Body != http.NoBody && req.GetBody == nil
	shared := d.n.returned.shared.Load() > 0
	if !draining && !once && !shared {
		return d.rt.RoundTrip(req)
	}
	ctx := req.Context()
	if shared {
		ctx = context.WithValue(ctx, hostContextKey{}, name)
	}
	if draining {
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
		// Without GetBody: rt could call it after the body was read, and would then send an incomplete body.
		own.Body = b
		defer func() { b.recordRoundTripReturned(err) }() // also if rt panics
	}
	resp, err = d.rt.RoundTrip(own)
	for again := 0; once && again < maxResends && b.releaseIfRetryable(err); again++ {
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

// retryableBody wraps a request body that can be read only once. With it, a drainingTransport can send the request
// again if the body was not read. Until RoundTrip of the drainingTransport returns, Close does not close an unread
// body.
type retryableBody struct {
	io.ReadCloser

	mu          sync.Mutex // guards the fields below, and ReadCloser
	read        bool       // Read was called
	closed      bool       // Close was called without effect
	hasReturned bool       // RoundTrip has returned
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
	// net/http (Go 1.26) closes an unread body if an HTTP/2 connection refuses the request, and returns cannotRewind.
	later := !b.read && !b.hasReturned
	b.closed = b.closed || later
	from := b.ReadCloser
	b.mu.Unlock()
	if later {
		return nil
	}
	return from.Close()
}

// releaseIfRetryable reports whether a request that failed with err can be sent again, because net/http gave it up before
// it read the body. It then gives up the body, which the caller must wrap in a new retryableBody for the next attempt.
func (b *retryableBody) releaseIfRetryable(err error) bool {
	if err == nil || err.Error() != cannotRewind {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read {
		return false
	}
	b.ReadCloser = http.NoBody // the next retryableBody uses the body
	return true
}

// recordRoundTripReturned records that RoundTrip of the drainingTransport has returned, with the error err. From now
// on, Close closes the body. recordRoundTripReturned closes the body itself if Close has left it open, or if RoundTrip
// failed without reading it.
func (b *retryableBody) recordRoundTripReturned(err error) {
	b.mu.Lock()
	b.hasReturned = true
	closes := b.closed || err != nil && !b.read
	from := b.ReadCloser
	b.mu.Unlock()
	if closes {
		_ = from.Close()
	}
}

// decideClosing decides whether a request to the host name must close its connection (closes). draining reports whether
// the host has open connections to addresses that it has lost. The caller must then call recordUse when the request has
// its connection.
func (n *Names) decideClosing(name string) (closes, draining bool) {
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
	if h.closesNext { // all requests of the next two seconds close their connections
		h.closesNext, h.closeUntil = false, now.Add(closingTime)
	}
	return now.Before(h.closeUntil), true
}

// recordUse records that a request to the host name uses the connection c. closes reports whether the request closes c.
// If c leads to an address that the host has lost and stays open, later requests to the host close their connections.
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
	} else { // an earlier request with closes did not close it either
		h.closesNext = true
	}
	h.updateDraining(now)
}

// trackingOf returns the record of a connection that DialContext has made, or nil for any other connection. c may be a
// wrapper with a method NetConn, such as a TLS connection.
func trackingOf(c net.Conn) *trackedConn {
	for {
		switch t := c.(type) {
		case interface{ getTracking() *trackedConn }:
			return t.getTracking()
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// shouldDrain reports whether connections to a are to be closed, because the host has lost the address. If lost
// addresses of the host often return, a must have been absent for five minutes (rotationDelay). now is the present
// time. The caller must hold mu.
func (h *host) shouldDrain(a *hostAddress, now time.Time) bool {
	if a.removedAt.IsZero() {
		return false
	}
	// three returns in ten minutes: each answer probably has only a part of the addresses
	return now.Sub(h.returnTimes[2]) >= removedMemory || now.Sub(a.removedAt) >= rotationDelay
}

// startDraining starts closing the host's connections to addresses that it has lost: idle connections now, and other
// connections after the next requests. It does nothing if there are none (hasConnsToDrain). now is the present time.
// The caller must hold mu.
func (h *host) startDraining(now time.Time) {
	if h.updateDraining(now); h.draining {
		h.closesNext = true
		h.closeIdleInterval = time.Second
		h.closeIdleConnsAfter(0)
	}
}

// updateDraining sets the field draining to the present result of hasConnsToDrain: whether the host has open
// connections to addresses that it has lost. It also adjusts Names.drainingHosts, the number of these hosts. now is the
// present time. The caller must hold mu.
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

// hasConnsToDrain reports whether the host has open connections to addresses that it has lost (shouldDrain). A
// connection does not count for one minute (connCloseTime) after a request that closes it. now is the present time. The
// caller must hold mu.
func (h *host) hasConnsToDrain(now time.Time) bool {
	for _, a := range h.addrs {
		if !h.shouldDrain(a, now) {
			continue
		}
		for t := range a.conns {
			if now.Sub(t.closes) >= connCloseTime {
				return true
			}
		}
	}
	return false
}

// closeIdleConnsAfter starts a timer that closes the idle connections of all transports passed to Drain, after delay.
// It repeats this at doubling intervals (closeIdleInterval) while the host has connections to lost addresses. The
// caller must hold mu.
func (h *host) closeIdleConnsAfter(delay time.Duration) {
	stopAndClear(&h.closeIdleTimer)
	h.closeIdleTimer = time.AfterFunc(delay, func() {
		h.n.mu.Lock()
		h.updateDraining(time.Now())
		if !h.draining || h.n.closed {
			h.n.mu.Unlock()
			return
		}
		drains := h.n.drains
		h.closeIdleConnsAfter(h.closeIdleInterval)
		h.closeIdleInterval *= 2
		h.n.wg.Add(1)
		h.n.mu.Unlock()
		defer h.n.wg.Done()
		for _, c := range drains {
			usercode.RunGuarded(c.CloseIdleConnections)
		}
	})
}
