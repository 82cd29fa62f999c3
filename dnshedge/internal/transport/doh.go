package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	registerScheme(Scheme{Name: "https", RFC: 8484, Port: dohPort, TLS: true, Path: "/dns-query"}, newDoH)
}

const (
	dohPort   = "443"
	mediaType = "application/dns-message"

	// Windows that hold a few of the longest messages. Larger ones let a server queue
	// megabytes before an answer.
	streamWindow = 1 << 17
	connWindow   = 1 << 18

	serialConns = 8 // of a lane, if the server speaks HTTP/1.1, where each answers one request at a time

	ownLane = -1 // of a query that has a connection for itself, after two have ended that it shared

	maxStreams = 100 // requests in flight on a connection; every server should allow that (RFC 9113 §6.5.2)

	pingAfter = 5 * time.Second // of silence on a connection with queries
	pingWait  = 2 * time.Second // for the answer to a ping
)

// errStreams is why no second connection is opened while a first one is in use: the
// server allows fewer streams than there are requests.
var errStreams = errors.New("dnshedge: server allows no more streams")

// A StatusError is the HTTP status of a response, if that is not 200.
type StatusError int

func (e StatusError) Error() string {
	return fmt.Sprintf("dnshedge: HTTP status %d %s", int(e), http.StatusText(int(e)))
}

// A PushbackError is why there is no answer if the server asks for less load: 429 or 503.
type PushbackError struct {
	Status StatusError
	Pause  time.Duration // Retry-After (RFC 9110 §10.2.3); 0: the server does not say
}

func (e *PushbackError) Error() string { return e.Status.Error() }
func (e *PushbackError) Unwrap() error { return e.Status }

// statusError returns the error of a response that is no answer.
func statusError(resp *http.Response) error {
	status := StatusError(resp.StatusCode)
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return status
	}
	return &PushbackError{status, parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())}
}

// parseRetryAfter returns the time from now that a Retry-After header names, in seconds or as a date; 0: none.
func parseRetryAfter(header string, now time.Time) time.Duration {
	if at, err := http.ParseTime(header); err == nil {
		return max(at.Sub(now), 0)
	}
	seconds, _ := strconv.ParseUint(header, 10, 31) // the largest there is, if the header's is larger
	return time.Duration(seconds) * time.Second
}

// httpsTransport asks over HTTPS (RFC 8484), with GET by default, and with ID 0,
// so that HTTP caches work. It has
// two lanes, one for first queries and one for repetitions, and a third one for probes, see probePolicy. A lane has one
// connection, and further ones while that has not enough streams; when it falls silent, the next query goes over a new one.
type httpsTransport struct {
	Config
	url     url.URL
	lanes   [sharedLanes]httpLane
	probing probePolicy
	own     chan struct{} // full while there are as many as may be of the queries that share no connection

	ctx    context.Context // of all requests
	cancel context.CancelFunc
	mu     sync.Mutex // makes reading closed and adding to wg one step
	closed bool
	wg     sync.WaitGroup // of requests
}

var _ sender = (*httpsTransport)(nil)

func newDoH(c Config) sender {
	d := &httpsTransport{Config: c, own: make(chan struct{}, ownLanes)}
	host := c.Addr
	if h, port, err := net.SplitHostPort(host); err == nil && port == dohPort {
		host = h
		if ip := net.ParseIP(h); ip != nil && ip.To4() == nil {
			host = "[" + h + "]"
		}
	}
	d.url = url.URL{Scheme: "https", Host: host}
	if path, err := url.PathUnescape(c.Path); err == nil { // not Parse: "//a/b" is a path, and no reference to host a
		d.url.Path, d.url.RawPath = path, c.Path
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for i := range d.lanes {
		d.lanes[i].open, d.lanes[i].done = d.newConn, d.ctx.Done()
	}
	return d
}

func (d *httpsTransport) Ready() bool {
	h := d.lanes[0].oldestConn()
	return h != nil && h.used.Load()
}

func (d *httpsTransport) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
	for i := range d.lanes {
		d.lanes[i].closeConns()
	}
}

func (d *httpsTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.IsAlone() {
		return d.exchangeAlone(ctx, q, w)
	}
	lane := d.probing.laneFor(q, n)
	for probed, ended := 0, 0; ; d.Owner.RecordRetry() {
		a, setup, _, err := d.sendRequest(ctx, q, lane, w)
		var broken *connectionError
		if !errors.As(err, &broken) || ctx.Err() != nil {
			return a, setup, err
		}
		switch {
		case broken.probed && !isProbe(q) && probed < maxRetries:
			probed++ // that may be what has ended the connection, and not the query
		case ended == 0:
			ended++ // the server may have begun anew, or another query has ended the connection
		case ended == 1 && broken.others:
			d.Owner.RecordRetry()
			return d.exchangeAlone(ctx, q, w)
		default:
			return a, setup, err
		}
	}
}

// exchangeAlone is Exchange over a connection that q has for itself.
func (d *httpsTransport) exchangeAlone(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case d.own <- struct{}{}:
		defer func() { <-d.own }()
		a, setup, _, err := d.sendRequest(ctx, q, ownLane, w)
		return a, setup, err
	case <-ctx.Done():
		return nil, 0, causeOf(ctx)
	}
}

// SendOnce makes one request, and another one as long as none was written.
func (d *httpsTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ {
		a, setup, written, err = d.sendRequest(ctx, q, 0, w)
		var broken *connectionError
		if err == nil || written || !errors.As(err, &broken) && !IsClosedByServer(err) || retries == maxRetries || ctx.Err() != nil {
			return a, setup, written, err
		}
	}
}

// sendRequest makes one request over a lane's connections. If there is an error, written says whether the request was written, or is about to be.
func (d *httpsTransport) sendRequest(ctx context.Context, q *wire.Query, lane int, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return nil, 0, false, ErrClosed
		}
		d.wg.Add(1)
		d.mu.Unlock()
		h, err := d.acquireConn(ctx, q, lane, w)
		if err != nil {
			d.wg.Done()
			return nil, 0, false, err
		}
		w.lastAnswer.Store(&h.carried)
		a, setup, written, err = d.requestOver(ctx, h, q)
		if !errors.Is(err, errStreams) || ctx.Err() != nil {
			return a, setup, written, err
		}
	}
}

// requestOver makes one request over h, which it leaves. It is counted in wg.
func (d *httpsTransport) requestOver(ctx context.Context, h *httpConn, q *wire.Query) (a *wire.Answer, setup time.Duration, written bool, err error) {
	// The request has a context of its own: servers take a client that cancels
	// streams for an attacker (ENHANCE_YOUR_CALM), and how long the answer takes
	// would not be known.
	own, cancel := context.WithCancel(d.ctx)
	type response struct {
		a     *wire.Answer
		setup time.Duration
		err   error
	}
	done := make(chan response, 1)
	sent := requestProgress{cancel: cancel}
	go func() {
		defer d.wg.Done()
		defer cancel()
		a, setup, err := d.fetchAnswer(own, h, q, &sent)
		done <- response{a, setup, err}
	}()
	select {
	case r := <-done:
		return r.a, r.setup, sent.at.Load() != 0, r.err
	case <-ctx.Done():
	}
	if sent.at.Load() == 0 || !d.Owner.BeginAbandoned() {
		cancel()
		return nil, 0, true, causeOf(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed { // Close has ended the request, and may not wait for another goroutine any more
		d.Owner.EndAbandoned()
		return nil, 0, true, causeOf(ctx)
	}
	sent.abandoned.Store(true)
	d.wg.Go(func() {
		defer d.Owner.EndAbandoned()
		t := time.NewTimer(d.Owner.AbandonedLifetime())
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			cancel()
			<-done
		}
	})
	return nil, 0, true, causeOf(ctx)
}

// requestProgress is how far a request has come. It is safe for concurrent use.
type requestProgress struct {
	at        atomic.Int64 // when it was written, Unix ns; 0: it was not
	abandoned atomic.Bool  // no caller waits for the response
	cancel    func()       // ends the request; nil for a request that is never abandoned
}

// acquireConn returns a connection of the lane for one request, which must call release and leave.
func (d *httpsTransport) acquireConn(ctx context.Context, q *wire.Query, lane int, w *QueryPath) (*httpConn, error) {
	switch {
	case lane == ownLane:
		h := d.newConn(1)
		h.addRequest()
		h.stopRequests()
		return h, nil
	case q == wire.RootServers:
		return d.lanes[lane].enterFirst(), nil
	}
	return d.lanes[lane].acquireConn(ctx, w)
}

// probeSilent is called when requests have waited for half of the owner's patience and
// nothing arrived, as connection.silent.
func (d *httpsTransport) probeSilent(h *httpConn) {
	wait := d.Owner.StallTimeout() / 2
	if !h.beginProbe(wait) {
		if h.lane != nil {
			h.lane.serveWaiting()
		}
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.probing.endsConnections() || !h.addRequest() {
		return
	}
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 2*wait)
		defer cancel()
		_, _, _ = d.fetchAnswer(ctx, h, wire.RootServers, new(requestProgress))
	})
}

// fetchAnswer makes one request. sent.at becomes the time when it is written. The error is a connectionError if the server has ended a connection that has
// carried an answer, or other requests.
func (d *httpsTransport) fetchAnswer(ctx context.Context, h *httpConn, q *wire.Query, sent *requestProgress) (*wire.Answer, time.Duration, error) {
	defer h.releaseRequest()
	if h.lane != nil && q != wire.RootServers {
		defer h.lane.releaseStream(h)
	}
	probe, start := isProbe(q), time.Now()
	number, alone := h.beginRequest(probe)
	a, setup, err := d.roundTrip(ctx, h, q, sent)
	if err != nil && sent.at.Load() == 0 && !errors.Is(err, errStreams) {
		d.forgetAddress() // the handshake may have failed
	}
	if h.lane != nil && errors.Is(err, errStreams) && !h.lane.lowerCapacity(h) {
		if q == wire.RootServers {
			err = localerror.ErrBusy
		} else { // a probe has the last stream, or what the server ends in order (GOAWAY): the next request takes another connection
			h.stopRequests()
		}
	}
	var status StatusError
	ended := IsClosedByServer(err) || err != nil && !errors.As(err, &status) && h.cutSince(start)
	probed, others := h.endRequest(probe, ended, number, start)
	if isStreamReset(err) && q.Standard() {
		return a, setup, &connectionError{err: &closedByServerError{err}, sent: true}
	}
	if unwanted := err != nil && !errors.Is(err, errStreams) && !errors.As(err, &status) && h.lane != nil && h.lane.recordFailure(h, ctx.Err() != nil); !ended {
		if unwanted {
			err = &connectionError{err: err, sent: sent.at.Load() != 0}
		}
		return a, setup, err
	} else if unwanted {
		others = true
	}
	if sent.at.Load() != 0 {
		err = &closedByServerError{err}
	}
	if probed {
		d.probing.recordConnEnd()
	}
	if others = others || !alone; probed || others || h.used.Load() {
		err = &connectionError{err: err, sent: sent.at.Load() != 0, others: others, probed: probed}
	}
	return a, setup, err
}

// A streamError has the fields of the error of an HTTP/2 stream that net/http returns: errors.As converts that to any structure with the
// same fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string {
	return fmt.Sprintf("HTTP/2 stream %d: error code %d", e.StreamID, e.Code)
}

// isStreamReset reports whether the server has reset an HTTP/2 stream (RFC 9113 §6.4) for a reason that may pass, as a proxy does whose own
// server ends the connection. Over HTTP/1.1 the connection ends then.
func isStreamReset(err error) bool {
	var reset streamError
	if !errors.As(err, &reset) {
		return false
	}
	const noError, internalError, refusedStream, cancel, enhanceYourCalm = 0x0, 0x2, 0x7, 0x8, 0xb // RFC 9113 §7
	switch reset.Code {
	case noError, internalError, refusedStream, cancel, enhanceYourCalm:
		return true
	}
	return false
}

// roundTrip is fetch, and its error is as it came.
func (d *httpsTransport) roundTrip(ctx context.Context, h *httpConn, q *wire.Query, sent *requestProgress) (*wire.Answer, time.Duration, error) {
	start := time.Now()
	const waits, holds, ended = 0, 1, 2
	var state atomic.Int32
	var got atomic.Int64 // when it had a connection, Unix ns
	var opened atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if sent.abandoned.Load() { // net/http repeats a request that the server has refused
				sent.cancel()
			}
			got.Store(time.Now().UnixNano())
			if state.CompareAndSwap(waits, holds) {
				h.holders.Add(1)
			}
			if !i.Reused {
				opened.Store(true)
				d.Owner.RecordHandshake(time.Since(start))
			}
			h.recordOpened()
		},
		// Not earlier: a request may wait until the server takes another stream.
		WroteHeaders: func() {
			sent.at.Store(time.Now().UnixNano())
			d.Owner.RecordQuery()
		},
	})
	defer func() {
		if state.Swap(ended) == holds {
			h.holders.Add(-1)
		}
	}()
	b := q.Append(make([]byte, 0, 256), 0, wire.Shape{Size: d.Size, Pad: true})
	resp, err := h.http.RoundTrip(d.newRequest(b, q.Standard()).WithContext(ctx))
	if err != nil {
		if d.ctx.Err() != nil {
			err = ErrClosed
		}
		return nil, 0, err
	}
	defer resp.Body.Close()
	h.recordAnswer(d.Owner.StallTimeout()/2, q == wire.RootServers, resp.ProtoMajor < 2)
	a, err := d.readAnswer(resp, q)
	if err != nil {
		return nil, 0, err
	}
	began := time.Unix(0, cmp.Or(sent.at.Load(), got.Load()))
	var setup time.Duration
	if opened.Load() {
		setup = began.Sub(start)
	}
	took := time.Since(began)
	if h.lane != nil && q != wire.RootServers {
		h.lane.recordAnswerTime(took)
	}
	d.Owner.RecordAnswer(took, h.connectionRTT())
	return a, setup, nil
}

// readAnswer returns the answer to q that resp carries.
func (d *httpsTransport) readAnswer(resp *http.Response, q *wire.Query) (*wire.Answer, error) {
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || t != mediaType {
		return nil, fmt.Errorf("dnshedge: content type %q; want %s", resp.Header.Get("Content-Type"), mediaType)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxMsg+1))
	if err != nil {
		return nil, err
	}
	a, err := parseBody(body, q)
	if err != nil {
		d.Owner.RecordIgnored(err)
		return nil, err
	}
	// The time in HTTP caches counts against the TTLs (RFC 8484 §5.1).
	// One that is too large is the largest there is (RFC 9111 §1.2.2).
	if age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		a.SubtractTTL(time.Duration(age) * time.Second)
	}
	return a, nil
}

// newRequest returns the request for a query. net/http may repeat it if the server closes
// the connection or resets the stream, but only if the query is safe to repeat: without GetBody it cannot.
func (d *httpsTransport) newRequest(b []byte, repeat bool) *http.Request {
	u := d.url
	r := &http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: http.Header{"Accept": {mediaType}, "User-Agent": {""}}}
	if !d.Post && repeat {
		u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(b)
		return r
	}
	r.Method = http.MethodPost
	r.Header["Content-Type"] = []string{mediaType}
	if repeat {
		r.Header["Idempotency-Key"] = nil // tells net/http, and is not sent
	}
	r.ContentLength = int64(len(b))
	r.Body = io.NopCloser(bytes.NewReader(b))
	if repeat {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	return r
}

func parseBody(b []byte, q *wire.Query) (*wire.Answer, error) {
	if len(b) > wire.MaxMsg {
		return nil, errors.New("dnshedge: response longer than a message")
	}
	if err := q.Check(b, 0); err != nil {
		return nil, err
	}
	return wire.ParseAnswer(b, q)
}

// httpConn is one connection, opened by its first request, or some, if the server
// speaks HTTP/1.1. net/http may replace it if the server closes it.
type httpConn struct {
	limit int // of the connections
	http  *http.Transport
	stall func() time.Duration // the owner's
	used  atomic.Bool          // a request was answered
	ready atomic.Bool          // a request had a connection

	lane     *httpLane // nil: it is for one request only
	added    time.Time // to the lane; never changes
	capacity int       // streams for requests, probes excepted; guarded by the lane's lock
	taken    int       // of them; guarded by the lane's lock

	// holders is how many requests have a stream. One has it before it is written: if those counted that are written,
	// the first that finds no stream left could open a second connection.
	holders atomic.Int32

	// carried is when the last answer came, Unix ns; 0: none has, or each request has an HTTP/1.1 connection for itself.
	carried atomic.Int64

	mu      sync.Mutex  // guards the fields below
	conns   []net.Conn  // that are open, in the order they were opened; rarely more than one
	busy    int         // requests in flight
	silence *time.Timer // runs while requests wait and nothing arrives
	probes  int         // sent since the last answer to a caller
	probing bool        // nothing arrived since the last of them
	retired bool        // no request follows; the last one in flight closes the connection

	cut   time.Time // when the server last ended a connection
	begun int       // requests, also those that have ended
	asked int       // probes under way, whoever sent them
	ended time.Time // when the connection last ended under one
}

func (d *httpsTransport) newConn(limit int) *httpConn {
	h := &httpConn{limit: limit, stall: d.Owner.StallTimeout}
	h.capacity = h.initialCapacity()
	h.silence = time.AfterFunc(time.Hour, func() { d.probeSilent(h) })
	h.silence.Stop()
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(true) // for servers without HTTP/2
	h.http = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if limit == 1 && h.holders.Load() > 0 && h.connected() {
				return nil, errStreams
			}
			c, err := d.dialServer(ctx, network)
			if err != nil {
				return nil, err
			}
			return h.trackConn(c), nil
		},
		TLSClientConfig:     d.tlsConfig("h2", "http/1.1"), // a copy, because net/http writes to it
		TLSHandshakeTimeout: dialTime,
		Protocols:           &protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingWait,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
		},
		MaxConnsPerHost:        limit, // or requests that wait for a handshake would each dial
		MaxIdleConnsPerHost:    limit,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: 1 << 14,
		DisableCompression:     true,
	}
	return h
}

// initialCapacity returns for how many requests there is room before the server says how many streams it allows, which shows when net/http
// wants another connection. One of maxStreams is for probes.
func (h *httpConn) initialCapacity() int {
	if h.limit > 1 {
		return h.limit
	}
	return maxStreams - 1
}

// recordOpened is called when a request has a connection.
func (h *httpConn) recordOpened() {
	if h.ready.CompareAndSwap(false, true) && h.lane != nil {
		h.lane.serveWaiting()
	}
}

// isRetired reports whether no other request enters.
func (h *httpConn) isRetired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.retired
}

// isClosed reports whether the connection was open and is not any more.
func (h *httpConn) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready.Load() && h.busy == 0 && len(h.conns) == 0
}

func (h *httpConn) connected() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns) > 0
}

// addRequest counts a request, or reports false if the connection takes no more.
func (h *httpConn) addRequest() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.retired {
		return false
	}
	if h.busy++; h.busy == 1 {
		h.probes, h.probing = 0, false
		h.silence.Reset(h.stall() / 2)
	}
	return true
}

// beginProbe reports whether the connection, which is silent, is to be probed. If the
// last probe has no answer yet, the connection is retired instead.
func (h *httpConn) beginProbe(wait time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy == 0 {
		return false
	}
	h.retired = h.retired || h.probing
	if h.retired {
		return false
	}
	h.probing = true
	h.probes++
	h.silence.Reset(wait)
	return true
}

// beginRequest is called before a request, which has entered and may be a probe. It returns its number, and whether no other one is under way.
func (h *httpConn) beginRequest(probe bool) (number int, alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	if probe {
		h.asked++
	}
	return h.begun, h.busy == 1
}

// endRequest is called after a request that began at start with that number, and has ended with its connection or otherwise. It reports whether a probe was under way with it when
// its connection ended, and whether another request has begun since.
func (h *httpConn) endRequest(probe, connection bool, number int, start time.Time) (probed, others bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if probe && connection {
		h.ended = time.Now()
	}
	probed = h.asked > 0 || !h.ended.Before(start)
	if probe {
		h.asked--
	}
	return probed, h.begun > number
}

// stopRequests lets no other request enter.
func (h *httpConn) stopRequests() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = true
}

// recordAnswer ends a silence. After each probe that was answered, the next one comes
// twice as late.
//
// A server that speaks HTTP/1.1 gets more connections from then on.
func (h *httpConn) recordAnswer(wait time.Duration, probe, serial bool) {
	h.used.Store(true)
	if !serial {
		h.carried.Store(time.Now().UnixNano())
	}
	if serial && h.limit == 1 && h.lane != nil {
		h.lane.allowMoreConns()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if serial && h.limit == 1 {
		h.retired = true
	}
	h.probing = false
	if !probe {
		h.probes = 0
	}
	h.silence.Reset(wait << min(h.probes, 8))
}

// releaseRequest ends a request.
func (h *httpConn) releaseRequest() {
	h.mu.Lock()
	h.busy--
	if h.busy == 0 {
		h.silence.Stop()
	}
	last := h.busy == 0 && h.retired
	h.mu.Unlock()
	if last {
		h.closeConns()
	}
}

// closeConns closes all opened sockets. No request may be in flight, and none may follow.
func (h *httpConn) closeConns() {
	h.http.CloseIdleConnections()
	h.mu.Lock()
	conns := slices.Clone(h.conns)
	h.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // one whose last request has just ended is not idle yet
	}
}

// connectionRTT returns the round trip time of the newest connection, or 0.
func (h *httpConn) connectionRTT() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.conns) == 0 {
		return 0
	}
	return kernelRTT(h.conns[len(h.conns)-1])
}

// trackConn keeps c in conns until it is closed.
func (h *httpConn) trackConn(c net.Conn) net.Conn {
	if h.lane != nil {
		h.lane.resetCapacity(h)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return &trackedConn{c, h}
}

// cutSince reports whether the server has ended a connection after start. Of the requests on it, only some may have an error that says so: net/http closes
// a connection on which one has failed.
func (h *httpConn) cutSince(start time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut.Before(start)
}

type trackedConn struct {
	net.Conn
	h *httpConn
}

func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.recordReadError(err)
	return n, err
}

func (t *trackedConn) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	t.recordReadError(err)
	return n, err
}

// recordReadError remembers if err says that the server has ended the connection.
func (t *trackedConn) recordReadError(err error) {
	if !IsClosedByServer(err) {
		return
	}
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	t.h.cut = time.Now()
}

func (t *trackedConn) Close() error {
	t.h.mu.Lock()
	if i := slices.Index(t.h.conns, t.Conn); i >= 0 {
		t.h.conns = slices.Delete(t.h.conns, i, i+1)
	}
	t.h.mu.Unlock()
	return t.Conn.Close()
}
