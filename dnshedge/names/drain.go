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
	// closingTime is how long requests to a host close their connections. It starts with the first request after the
	// host has lost an address. It starts again with the first request after another one has used a connection to a
	// lost address without closing it.
	closingTime = 2 * time.Second

	// connCloseTime is the time that a connection has to close after a request that closes it. If it is still open then, it
	// counts as not drained: the request is slow, or was cancelled before net/http marked the connection.
	connCloseTime = time.Minute

	// rotationDelay is how long an address must be absent from the answers before it is drained, if removed addresses
	// of the host return. The host's name servers then return a part of a larger set, and the address is still in that
	// set.
	rotationDelay = 5 * time.Minute

	// cannotRewind is the error text of net/http for a request that could be sent again if its body could be read
	// again.
	cannotRewind = "net/http: cannot rewind body after connection loss"

	// maxResends limits how often a request is sent again.
	maxResends = 100
)

// Drain returns a RoundTripper that sends requests through rt, and closes connections to addresses that their host has
// lost. A host has lost an address if its last successful lookup did not find it. The connections of rt must be made by
// DialContext. Requests that are under way are not interrupted.
//
// When a host loses an address with open connections, Names calls the method CloseIdleConnections of rt, if it has one.
// In net/http it closes the idle connections of all hosts. Names repeats the call after one second, two, four and so
// on, while there are connections to lost addresses. A panic of the method is dropped.
//
// The next requests to the host have Request.Close set. A connection closes after such a request, and an HTTP/2
// connection when all its requests have ended. An HTTP/1.1 server receives "Connection: close".
//
// Request.Close is not set for requests through a proxy, nor for URLs with a host that is not ASCII. A request whose
// connection closes before its body was read is sent again.
//
// If three lookups within ten minutes find lost addresses again, the host's name servers probably return a different
// part of a larger set each time. Then connections to an address are closed only after it was in no answer for five
// minutes.
//
// Drain must be called once for each rt, which the Names stores. rt is an *http.Transport, or wraps one as the
// transport of package hedge does.
func (n *Names) Drain(rt http.RoundTripper) http.RoundTripper {
	n.init()
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		n.mu.Lock()
		n.drains = append(n.drains, c)
		n.mu.Unlock()
	}
	return &drainingTransport{n, rt}
}

// A drainingTransport is the RoundTripper that Names.Drain returns. It sends requests through rt. While a host has
// connections to addresses that it has lost, requests to this host close their connections. Later requests then use new
// connections to its present addresses.
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
	closes, ok := d.n.decideClosing(name)
	once := req.Body != nil && req.Body != http.NoBody && req.GetBody == nil
	shared := d.n.returned.shared.Load() > 0
	if !ok && !once && !shared {
		return d.rt.RoundTrip(req)
	}
	ctx := req.Context()
	if shared {
		ctx = context.WithValue(ctx, hostContextKey{}, name)
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
		defer func() { b.recordRoundTripReturned(err) }() // also if rt panics
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

// retryableBody lets a drainingTransport send a request again whose body can be read only once. An HTTP/2 connection
// that the server is closing may refuse the request before its body was read. net/http (Go 1.26) then closes the unread
// body, and returns the error cannotRewind.
//
// So until RoundTrip of the drainingTransport returns, Close does nothing to an unread body. Request.GetBody is not set
// instead, because rt could call it after the body was read, and would then send an incomplete body.
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
	later := !b.read && !b.hasReturned
	b.closed = b.closed || later
	from := b.ReadCloser
	b.mu.Unlock()
	if later {
		return nil
	}
	return from.Close()
}

// resetIfRetryable reports whether a request that failed with err can be sent again with the same original body. That
// is so if err is net/http's error for a body that cannot be read again (cannotRewind), and the body has not been read.
//
// If the result is true, b is detached from the original body. The next attempt needs a new retryableBody for it.
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

// recordRoundTripReturned records that RoundTrip has returned, with the error err. From now on, Close closes the body,
// as callers of RoundTrip expect. The body is closed at once if Close was called before, or if RoundTrip failed without
// reading the body.
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

// decideClosing decides, for a request to the host name, whether its connection must close after it. ok is false if the
// host has no connections to addresses that it has lost: the request is then sent unchanged. Otherwise the caller must
// call recordUse when the request has got its connection.
//
// closes is true if the connection must close. It is true for two seconds (closingTime), which the first request after
// startDraining begins. If recordUse finds that a connection to a lost address stays open, the next request begins them
// again.
func (n *Names) decideClosing(name string) (closes, ok bool) {
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

// recordUse records that a request to the host name is sent over the connection c. closes is true if c closes after the
// request. recordUse does nothing if connections to the remote address of c need not close (shouldDrain).
//
// If c stays open although the host has lost the address, the next requests to the host close their connections
// (closesNext). One of these requests may use c.
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

// trackingOf returns the record of a connection that DialContext has made. c may be a wrapper with a method NetConn,
// such as a TLS connection. It returns nil for connections that were made otherwise.
func trackingOf(c net.Conn) *connTracking {
	for {
		switch t := c.(type) {
		case interface{ getTracking() *connTracking }:
			return t.getTracking()
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// shouldDrain reports whether connections to the address a are to be closed at the present time now, because the host
// no longer has the address. The caller must hold mu.
//
// If three lookups within ten minutes (removedMemory) have found addresses that were removed before, each answer
// probably has only a part of the host's addresses. The result is then true only if a has been absent for five minutes
// (rotationDelay).
func (h *host) shouldDrain(a *hostAddress, now time.Time) bool {
	if a.removedAt.IsZero() {
		return false
	}
	return now.Sub(h.returnTimes[2]) >= removedMemory || now.Sub(a.removedAt) >= rotationDelay
}

// startDraining begins to close the connections to addresses that the host has lost. now is the present time. It closes
// idle connections (closeIdleConnsAfter), and makes the next requests to the host close their connections
// (decideClosing). It does nothing if there are no connections to lost addresses. The caller must hold mu.
func (h *host) startDraining(now time.Time) {
	if h.updateDraining(now); h.draining {
		h.closesNext = true
		h.closeIdleInterval = time.Second
		h.closeIdleConnsAfter(0)
	}
}

// updateDraining determines again whether the host has connections to drain at the present time now (hasConnsToDrain).
// It stores the result in the field draining, and adjusts Names.drainingHosts, the number of hosts with connections to
// drain. The caller must hold mu.
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

// hasConnsToDrain reports whether the host has an open connection to an address that it has lost. A connection over
// which a request with Request.Close was sent in the minute before now (connCloseTime) does not count, because it is
// probably about to close. The caller must hold mu.
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

// closeIdleConnsAfter starts a timer for the duration d. When it fires, it closes the idle connections of all
// transports that were passed to Names.Drain. It then starts the next timer, each with twice the interval of the one
// before (closeIdleInterval).
//
// The timer does nothing if the host no longer has connections to addresses that it has lost, or if Names is closed.
// The caller must hold mu.
func (h *host) closeIdleConnsAfter(d time.Duration) {
	stopAndClear(&h.closeIdleTimer)
	h.closeIdleTimer = time.AfterFunc(d, func() {
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
