package transport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
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
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	registerScheme(Scheme{Name: "https", RFC: 8484, Port: dohPort, TLS: true, Path: "/dns-query"}, newHTTPSTransport)
}

const (
	dohPort   = "443"
	mediaType = "application/dns-message"

	// streamWindow and connWindow are the HTTP/2 flow control windows in bytes. They suffice for a few DNS messages of
	// maximum size. With larger windows, a server could make this side store megabytes.
	streamWindow = 1 << 17
	connWindow   = 1 << 18

	serialConns = 8 // HTTP/1.1 connections of one httpConn; each carries one request at a time

	exclusivePool = -1 // stands for the index of a pool if a query needs a connection of its own

	maxStreams = 100 // maximum number of requests in flight on a connection; servers should permit at least this many (RFC 9113 §6.5.2)

	pingAfter = 5 * time.Second // time without a frame after which a connection with requests is tested by a ping
	pingWait  = 2 * time.Second // time to wait for the response to a ping
)

// errMustChangeConn is the error of a request for which an httpConn has no free stream, so that net/http has tried to
// open a second connection. It is also the error of a request whose httpConn turned out to use HTTP/1.1, where a
// connection carries one request at a time. The request must be sent again, over another httpConn if possible.
var errMustChangeConn = errors.New("dnshedge: request must use another connection")

// A StatusError is the error of a query whose HTTP response had a status code other than 200. Its value is that code.
type StatusError int

func (e StatusError) Error() string {
	return fmt.Sprintf("dnshedge: HTTP status %d %s", int(e), http.StatusText(int(e)))
}

// A PushbackError is the error of a query that the server has rejected with the HTTP status code 429 or 503, because it
// is overloaded.
type PushbackError struct {
	Status StatusError   // the HTTP status code
	Pause  time.Duration // wait that the Retry-After header asks for (RFC 9110 §10.2.3); 0: none
}

func (e *PushbackError) Error() string { return e.Status.Error() }
func (e *PushbackError) Unwrap() error { return e.Status }

// statusError converts the HTTP response resp, whose status code is not 200, into the error of the query: a
// *PushbackError for the codes 429 and 503, or else a StatusError.
func statusError(resp *http.Response) error {
	return NewStatusError(resp.StatusCode, parseRetryAfter(resp.Header.Get("Retry-After"), time.Now()))
}

// NewStatusError returns the error for a response with the HTTP status code, which is not 200. It is a *PushbackError
// for the codes 429 and 503, and a StatusError for all others. pause is the wait that the response asks for.
func NewStatusError(code int, pause time.Duration) error {
	status := StatusError(code)
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return status
	}
	return &PushbackError{status, pause}
}

// parseRetryAfter returns the wait that a Retry-After header asks for. The header holds a number of seconds, or a date,
// from which now is subtracted. It returns 0 if the header is empty, invalid or in the past.
func parseRetryAfter(header string, now time.Time) time.Duration {
	if at, err := http.ParseTime(header); err == nil {
		return max(at.Sub(now), 0)
	}
	seconds, _ := strconv.ParseUint(header, 10, 31) // the largest possible number if the header has a larger one
	return time.Duration(seconds) * time.Second
}

// An httpsTransport sends queries over HTTPS (RFC 8484), by default with GET. It has three connection pools: for the
// first query of each DNS question, for its hedges and retransmissions, and for a question that may make the server
// close the connection.
type httpsTransport struct {
	Config
	url            url.URL                   // URL of the server, without a query
	pools          [sharedPools]httpConnPool // pools by poolIndex: for first queries, for later ones, and for probes
	probing        probePolicy               // decides whether probes may use the connections of other queries
	exclusiveSlots chan struct{}             // semaphore that limits queries with a connection of their own

	ctx    context.Context    // ends when Close is called
	cancel context.CancelFunc // ends ctx
	mu     sync.Mutex         // guards closed; held from the check of closed until wg.Add
	closed bool               // Close was called
	wg     sync.WaitGroup     // counts requests in flight
}

var _ sender = (*httpsTransport)(nil)

// newHTTPSTransport returns a transport that sends queries over HTTPS to the server that c describes. It opens no
// connection.
func newHTTPSTransport(c Config) sender {
	d := &httpsTransport{Config: c, exclusiveSlots: make(chan struct{}, maxExclusive)}
	host := c.Addr
	if h, port, err := net.SplitHostPort(host); err == nil && port == dohPort {
		host = h
		if ip := net.ParseIP(h); ip != nil && ip.To4() == nil {
			host = "[" + h + "]"
		}
	}
	d.url = url.URL{Scheme: "https", Host: host}
	if path, err := url.PathUnescape(c.Path); err == nil { // url.Parse would take "//a/b" for host a and path /b
		d.url.Path, d.url.RawPath = path, c.Path
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for i := range d.pools {
		d.pools[i].makeConn, d.pools[i].done = d.newHTTPConn, d.ctx.Done()
	}
	return d
}

// Ready implements Transport. It reports whether the httpConn that the first query of a question uses has an open
// connection, so that this query needs no handshake. Later queries of a question, such as hedges and retransmissions to
// the same server, use another pool.
func (d *httpsTransport) Ready() bool {
	h := d.pools[0].oldestConn()
	return h != nil && h.isEstablished()
}

// Close implements Transport. It cancels all requests, waits until they have ended, and closes the connections.
func (d *httpsTransport) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
	for i := range d.pools {
		d.pools[i].closeConns()
	}
}

// Exchange implements Transport. n is the number of earlier queries with the same question to this server. The duration
// is the time that q waited for handshakes. w records the connection. If the connection fails, Exchange sends q again,
// at most ten times.
func (d *httpsTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.NeedsOwnConnection() {
		return d.exchangeExclusively(ctx, q, w)
	}
	pool := d.probing.poolIndex(q, n)
	var setup time.Duration
	for probed, ended := 0, 0; ; d.Owner.RecordRetry() {
		a, more, _, err := d.sendRequest(ctx, q, pool, w)
		setup += more
		var broken *connectionError
		if !errors.As(err, &broken) || ctx.Err() != nil {
			return a, setup, err
		}
		switch {
		case broken.endedByProbe && !isProbeQuestion(q) && probed < maxRetries:
			probed++ // the probe may have ended the connection, and not the query
		case ended == 0:
			ended++ // the server may have restarted, or another query has ended the connection
		case ended == 1 && broken.hadOthers:
			d.Owner.RecordRetry()
			a, more, err = d.exchangeExclusively(ctx, q, w)
			return a, setup + more, err
		default:
			return a, setup, err
		}
	}
}

// exchangeExclusively sends q over a new connection that no other query uses. The duration is the time that q waited
// for handshakes. At most eight of these queries (maxExclusive) run at the same time. Others wait, at most until ctx
// ends. w records the connection.
func (d *httpsTransport) exchangeExclusively(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case d.exclusiveSlots <- struct{}{}:
		defer func() { <-d.exclusiveSlots }()
		// If the server closes the connection because of q, no other query is lost.
		a, setup, _, err := d.sendRequest(ctx, q, exclusivePool, w)
		return a, setup, err
	case <-ctx.Done():
		return nil, 0, contextCause(ctx)
	}
}

// SendOnce implements sender. It sends q, a message that the server must not get twice. setup is the time that q waited
// for handshakes. If err is not nil, written is true if the server may have received q. w records the connection.
func (d *httpsTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ { // again if the connection has ended before the request was written
		var more time.Duration
		a, more, written, err = d.sendRequest(ctx, q, 0, w)
		setup += more
		var broken *connectionError
		if err == nil || written || !errors.As(err, &broken) && !IsClosedByServer(err) || retries == maxRetries || ctx.Err() != nil {
			return a, setup, written, err
		}
	}
}

// sendRequest sends q over a connection of the pool with this index, or a new one for exclusivePool. setup is the time
// that q waited for handshakes. After an error, written is true if the server may receive q. w records the connection.
func (d *httpsTransport) sendRequest(ctx context.Context, q *wire.Query, pool int, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return nil, 0, false, ErrClosed
		}
		d.wg.Add(1)
		d.mu.Unlock()
		h, err := d.acquireConn(ctx, q, pool, w)
		if err != nil {
			d.wg.Done()
			return nil, 0, false, err
		}
		w.lastAnswer.Store(&h.lastAnswer)
		var more time.Duration
		a, more, written, err = d.sendOverConn(ctx, h, q)
		setup += more
		// Without a free stream, send q again, except if it was written and must not be repeated.
		if !errors.Is(err, errMustChangeConn) || written && !q.IsStandard() || ctx.Err() != nil {
			return a, setup, written, err
		}
	}
}

// sendOverConn sends q over h. setup is the time that q waited for a handshake. After an error, written is true if the
// server may receive q. The caller must call d.wg.Add and h.addRequest before. sendOverConn undoes both when the
// request has ended.
func (d *httpsTransport) sendOverConn(ctx context.Context, h *httpConn, q *wire.Query) (a *wire.Answer, setup time.Duration, written bool, err error) {
	// The request has a context of its own, which ctx does not end. Servers treat a client
	// that cancels streams as an attacker (ENHANCE_YOUR_CALM), and the latency of the
	// response would remain unknown.
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
		return r.a, r.setup, sent.writtenAt.Load() != 0, r.err
	case <-ctx.Done():
	}
	if sent.writtenAt.Load() == 0 || !d.Owner.TryBeginAbandonedQuery() {
		cancel()
		return nil, 0, true, contextCause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed { // Close has ended the request, and wg must not grow any more
		d.Owner.EndAbandonedQuery()
		return nil, 0, true, contextCause(ctx)
	}
	sent.abandoned.Store(true) // the request continues, to measure its latency
	d.wg.Go(func() { awaitAbandonedQuery(d.Owner, done, cancel) })
	return nil, 0, true, contextCause(ctx)
}

// A requestProgress records whether an HTTP request has got a connection and was written, and whether its caller still
// waits. It is safe for concurrent use.
type requestProgress struct {
	gotAt     atomic.Int64 // time at which the request got a connection, in Unix nanoseconds; 0: it has none
	opened    atomic.Bool  // no other request has used this connection before
	writtenAt atomic.Int64 // time at which the request was written, in Unix nanoseconds; 0: not written
	abandoned atomic.Bool  // no caller waits for the response
	cancel    func()       // cancels the request; nil: the request is never abandoned
}

// sentAt returns the time at which the request was written, or at which it got a connection if that time is unknown. If
// it has no connection, it returns the present time.
func (p *requestProgress) sentAt() time.Time {
	return time.Unix(0, cmp.Or(p.writtenAt.Load(), p.gotAt.Load(), time.Now().UnixNano()))
}

// acquireConn returns a connection for q from the pool with this index, or a new one if pool is exclusivePool. It may
// wait until ctx ends. The error is localerror.ErrNoStream if q would probably miss its deadline. The caller must pass
// the connection to fetchAnswer.
func (d *httpsTransport) acquireConn(ctx context.Context, q *wire.Query, pool int, w *QueryPath) (*httpConn, error) {
	switch {
	case pool == exclusivePool:
		h := d.newHTTPConn(1)
		h.addRequest()
		h.retireConnection()
		return h, nil
	case q == wire.RootServers: // a probe does not wait for a free stream
		return d.pools[pool].acquireProbeConn(), nil
	}
	return d.pools[pool].acquireConn(ctx, w)
}

// probeIfSilent is called by a timer if requests wait and nothing arrives over h for some time. If permitted, the first
// call sends a probe (a query for the root's NS records). If nothing arrives until the second call, later requests use
// another httpConn.
func (d *httpsTransport) probeIfSilent(h *httpConn) {
	wait := d.Owner.StallTimeout() / 2
	if !h.tryBeginProbe(wait) {
		if h.pool != nil {
			h.pool.distributeStreams()
		}
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.probing.areProbesDisabled() || !h.addRequest() {
		return // the second call retires h all the same
	}
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 2*wait)
		defer cancel()
		_, _, _ = d.fetchAnswer(ctx, h, wire.RootServers, new(requestProgress))
	})
}

// fetchAnswer sends q over h, and then releases h. The duration is the time that q waited for a handshake. It stores
// the progress of the request in sent. The error is a connectionError if q may be sent again over another connection.
func (d *httpsTransport) fetchAnswer(ctx context.Context, h *httpConn, q *wire.Query, sent *requestProgress) (*wire.Answer, time.Duration, error) {
	defer h.releaseRequest()
	if h.pool != nil && q != wire.RootServers {
		defer h.pool.releaseStream(h)
	}
	probe, start := isProbeQuestion(q), time.Now()
	number, alone := h.beginRequest(probe)
	wasEstablished := h.isEstablished()
	a, err := d.roundTrip(ctx, h, q, sent)
	var setup time.Duration
	if !wasEstablished || sent.opened.Load() {
		setup = sent.sentAt().Sub(start)
	}
	lacksStream := errors.Is(err, errMustChangeConn)
	if err != nil && sent.writtenAt.Load() == 0 && !lacksStream {
		d.forgetAddress() // the handshake may have failed
	}
	if h.pool != nil && lacksStream && !h.pool.lowerCapacity(h) {
		if q == wire.RootServers {
			err = localerror.ErrNoStream
		} else { // A probe has the last stream, or the server has sent GOAWAY. The next request uses another connection.
			h.retireConnection()
		}
	}
	var status StatusError
	ended := IsClosedByServer(err) || err != nil && !errors.As(err, &status) && h.wasClosedByServerSince(start)
	probed, others := h.endRequest(probe, ended, number, start)
	if isStreamReset(err) && q.IsStandard() {
		return a, setup, &connectionError{error: &closedByServerError{err}, sent: true}
	}
	if unwanted := err != nil && !lacksStream && !errors.As(err, &status) && h.pool != nil && h.pool.recordFailure(h, ctx.Err() != nil); !ended {
		if unwanted {
			err = &connectionError{error: err, sent: sent.writtenAt.Load() != 0}
		}
		return a, setup, err
	} else if unwanted { // the server may not accept h as an additional connection
		others = true
	}
	if sent.writtenAt.Load() != 0 {
		err = &closedByServerError{err}
	}
	if probed {
		d.probing.disableProbes()
	}
	// The reason need not be q: a probe or another request was in flight, or the connection has worked before.
	if others = others || !alone; probed || others || h.hasAnswered.Load() {
		err = &connectionError{error: err, sent: sent.writtenAt.Load() != 0, hadOthers: others, endedByProbe: probed}
	}
	return a, setup, err
}

// A streamError receives the HTTP/2 error code by which the server has reset a stream. It has the same fields as the
// unexported error of net/http, which errors.As can therefore convert to a streamError.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string {
	return fmt.Sprintf("HTTP/2 stream %d: error code %d", e.StreamID, e.Code)
}

// isStreamReset reports whether err means that the server has reset an HTTP/2 stream (RFC 9113 §6.4) for a reason that
// may be temporary, for example with the error code REFUSED_STREAM.
func isStreamReset(err error) bool {
	var reset streamError // HTTP/1.1 has no streams; the connection ends instead
	if !errors.As(err, &reset) {
		return false
	}
	const noError, internalError, refusedStream, cancel, enhanceYourCalm = 0x0, 0x2, 0x7, 0x8, 0xb // RFC 9113 §7
	// Proxies reset a stream when the connection to their own server ends.
	switch reset.Code {
	case noError, internalError, refusedStream, cancel, enhanceYourCalm:
		return true
	}
	return false
}

// roundTrip sends q over h and returns the response. It stores the progress of the request in sent. The error is
// ErrClosed if the transport is closed, and errMustChangeConn if the request must be sent over another connection.
func (d *httpsTransport) roundTrip(ctx context.Context, h *httpConn, q *wire.Query, sent *requestProgress) (*wire.Answer, error) {
	start := time.Now()
	const waits, holds, ended = 0, 1, 2
	var state atomic.Int32
	ctx, stop := h.newRequestContext(ctx, &sent.gotAt)
	defer stop()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if sent.abandoned.Load() { // net/http is about to repeat a request that the server has refused
				sent.cancel()
			}
			sent.gotAt.Store(time.Now().UnixNano())
			if state.CompareAndSwap(waits, holds) {
				h.streamHolders.Add(1)
			}
			if !i.Reused {
				sent.opened.Store(true)
				d.Owner.RecordHandshake(time.Since(start))
			}
			h.recordConnection(ctx, i)
		},
		// GotConn is too early: the request may still wait for a free stream.
		WroteHeaders: func() {
			if !mustChangeConn(ctx) {
				sent.writtenAt.Store(time.Now().UnixNano())
				d.Owner.RecordQuery()
			}
		},
	})
	defer func() {
		if state.Swap(ended) == holds {
			h.streamHolders.Add(-1)
		}
	}()
	// The ID is 0, so that HTTP caches can respond (RFC 8484 §4.1).
	b := q.Append(make([]byte, 0, 256), 0, wire.PackOptions{Size: d.Size, Pad: true})
	resp, err := h.http.RoundTrip(d.newRequest(b, q.IsStandard()).WithContext(traced))
	if err != nil {
		if d.ctx.Err() != nil {
			err = ErrClosed
		} else if mustChangeConn(ctx) {
			err = errMustChangeConn
		}
		return nil, err
	}
	defer resp.Body.Close()
	h.recordAnswer(d.Owner.StallTimeout()/2, q == wire.RootServers, resp.ProtoMajor >= 2)
	a, err := d.readAnswer(resp, q)
	if err != nil {
		return nil, err
	}
	d.recordLatency(h, q, time.Since(sent.sentAt()))
	return a, nil
}

// recordLatency reports took, the latency of q over h without the handshake, to the pool of h and to the Owner. The
// pool does not count probes.
func (d *httpsTransport) recordLatency(h *httpConn, q *wire.Query, took time.Duration) {
	if h.pool != nil && q != wire.RootServers {
		h.pool.recordLatency(took)
	}
	d.Owner.RecordAnswer(took, h.connectionRTT())
}

// readAnswer parses the DNS message in the HTTP response resp, and subtracts the age of a cached response from the
// TTLs. It returns an error if the status code is not 200, the Content-Type is wrong, or the message is no valid
// response to q.
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
	var a *wire.Answer
	if len(body) > wire.MaxMsg {
		err = errors.New("dnshedge: response longer than a message")
	} else if err = q.CheckResponse(body, 0); err == nil {
		a, err = wire.ParseAnswer(body, q)
	}
	if err != nil {
		d.Owner.RecordIgnored(err)
		return nil, err
	}
	// The age in HTTP caches is subtracted from the TTLs (RFC 8484 §5.1).
	// An age that is too large counts as the largest possible age (RFC 9111 §1.2.2).
	if age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		a.SubtractTTL(time.Duration(age) * time.Second)
	}
	return a, nil
}

// newRequest returns an HTTP request with the DNS message b. repeatable permits net/http to send the request again, for
// example after the server has closed the connection. The method is POST if Config.Post is true or repeatable is false,
// and GET otherwise.
func (d *httpsTransport) newRequest(b []byte, repeatable bool) *http.Request {
	u := d.url
	r := &http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Header: http.Header{"Accept": {mediaType}, "User-Agent": {""}}}
	if !d.Post && repeatable {
		u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(b)
		return r
	}
	r.Method = http.MethodPost
	r.Header["Content-Type"] = []string{mediaType}
	if repeatable {
		r.Header["Idempotency-Key"] = nil // a nil value permits net/http to repeat the request, and is not sent
	}
	r.ContentLength = int64(len(b))
	r.Body = io.NopCloser(bytes.NewReader(b))
	if repeatable { // without GetBody, net/http cannot repeat the request
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	return r
}

// An httpConn is one HTTP/2 connection, or a group of HTTP/1.1 connections, each of which carries one request at a
// time. It connects when the first request is sent, and again if the server has closed the connection.
type httpConn struct {
	limit        int                  // maximum number of open connections; more than 1 only for HTTP/1.1
	http         *http.Transport      // opens the connections and sends the requests
	stallTimeout func() time.Duration // the Owner's method StallTimeout
	hasAnswered  atomic.Bool          // a request had an HTTP response
	hasConnected atomic.Bool          // a request got an open connection
	isHTTP2      atomic.Bool          // a connection is open and uses HTTP/2

	pool        *httpConnPool // nil: the httpConn is for a single request
	addedAt     time.Time     // time at which it was added to the pool; never changes
	capacity    int           // number of streams for requests other than probes; guarded by httpConnPool.mu
	usedStreams int           // number of these streams in use; guarded by httpConnPool.mu

	// streamHolders is the number of requests for which net/http has chosen a connection, whether or not they were
	// written. If only written requests counted, the first request without a free stream could open a second connection.
	streamHolders atomic.Int32

	// lastAnswer is the time of the last HTTP/2 response, in Unix nanoseconds; 0: none. HTTP/1.1 responses do not count,
	// because each request has a connection of its own.
	lastAnswer atomic.Int64

	mu          sync.Mutex  // guards the fields below
	conns       []net.Conn  // open connections, oldest first; rarely more than one; also those in a TLS handshake
	established bool        // the handshake of a connection in conns has ended; reset when conns becomes empty
	inFlight    int         // number of requests in flight
	stallTimer  *time.Timer // calls probeIfSilent if requests wait and nothing arrives
	probes      int         // number of probes since the last response to a caller's query
	probing     bool        // a probe was sent or skipped, and nothing has arrived since
	retired     bool        // accepts no further requests; closed after the last request in flight
	serial      bool        // a connection uses HTTP/1.1, although limit is 1

	// movable has the functions that cancel requests which began before the protocol was known. Each key points to the
	// time at which the request got a connection, in Unix nanoseconds; 0: it waits (see newRequestContext).
	movable map[*atomic.Int64]context.CancelCauseFunc

	lastServerClose time.Time // time at which the server last ended a connection; zero: never
	requestCount    int       // number of requests since the httpConn was made
	probesInFlight  int       // number of requests in flight for the NS records of the root
	lastProbeEnd    time.Time // time at which a connection last ended with a probe in flight; zero: never
}

// newHTTPConn returns an httpConn for the server, without opening a connection. limit is the maximum number of open
// connections. It must be 1, or may be more if the server uses HTTP/1.1, whose connections carry one request at a time.
func (d *httpsTransport) newHTTPConn(limit int) *httpConn {
	h := &httpConn{limit: limit, stallTimeout: d.Owner.StallTimeout}
	h.capacity = h.initialCapacity()
	h.stallTimer = time.AfterFunc(time.Hour, func() { d.probeIfSilent(h) })
	h.stallTimer.Stop()
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(true) // for servers without HTTP/2
	h.http = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if limit == 1 && h.streamHolders.Load() > 0 && h.isConnected() {
				return nil, errMustChangeConn // only the pool may open further connections, each with its own httpConn
			}
			c, err := d.dialServer(ctx, network)
			if err != nil {
				return nil, err
			}
			return h.trackConn(c), nil
		},
		TLSClientConfig:     d.tlsConfig("h2", "http/1.1"), // a copy, because net/http writes to it
		TLSHandshakeTimeout: dialTimeout,
		Protocols:           &protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingWait,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
		},
		MaxConnsPerHost:        limit, // without it, each request that waits for a handshake would dial
		MaxIdleConnsPerHost:    limit,
		IdleConnTimeout:        defaultIdleTimeout,
		MaxResponseHeaderBytes: 1 << 14,
		DisableCompression:     true,
	}
	return h
}

// dialServer is Config.DialServer in another goroutine. net/http would wait for ever if the Dialer ended its own by
// runtime.Goexit.
func (d *httpsTransport) dialServer(ctx context.Context, network string) (c net.Conn, err error) {
	err = usercode.CallInGoroutine("Dialer", func() (err error) {
		c, err = d.DialServer(ctx, network)
		return err
	})
	return c, err
}

// initialCapacity returns the number of requests that h may carry at the same time until the server refuses one. For
// HTTP/2 it is one less than maxStreams, because one stream is kept for probes. For HTTP/1.1 it is the number of
// connections.
func (h *httpConn) initialCapacity() int {
	if h.limit > 1 {
		return h.limit
	}
	return maxStreams - 1
}

// isRetired reports whether h accepts no further requests, so that the pool must remove it. That is the case after
// retireConnection, or after h was found to be dead.
func (h *httpConn) isRetired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.retired
}

// isClosed reports whether h was open before, has no open connection now, and has no request in flight.
func (h *httpConn) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hasConnected.Load() && h.inFlight == 0 && len(h.conns) == 0
}

// isConnected reports whether h has at least one open connection at the moment.
func (h *httpConn) isConnected() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns) > 0
}

// isEstablished reports whether h has an open connection whose handshake has ended, so that a request needs none.
func (h *httpConn) isEstablished() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.established
}

// addRequest counts a request that is about to be sent over h. It returns false, and counts nothing, if h accepts no
// further requests. Otherwise, the caller must call releaseRequest when the request has ended.
func (h *httpConn) addRequest() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.retired {
		return false
	}
	if h.inFlight++; h.inFlight == 1 {
		h.probes, h.probing = 0, false
		h.stallTimer.Reset(h.stallTimeout() / 2)
	}
	return true
}

// tryBeginProbe reports whether the caller must now test h by a query. wait is the time until the timer starts the next
// test. If nothing has arrived since the last test, it returns false, and h accepts no further requests.
func (h *httpConn) tryBeginProbe(wait time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inFlight == 0 {
		return false
	}
	h.retired = h.retired || h.probing
	if h.retired {
		return false
	}
	h.probing = true
	h.probes++
	h.stallTimer.Reset(wait)
	return true
}

// beginRequest records the start of a request that addRequest has counted. probe must be true if the request asks for
// the NS records of the root.
//
// number identifies the request in the call of endRequest. alone is true if no other request is in flight.
func (h *httpConn) beginRequest(probe bool) (number int, alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requestCount++
	if probe {
		h.probesInFlight++
	}
	return h.requestCount, h.inFlight == 1
}

// endRequest records the end of a request that began at start. probe and number must be as in beginRequest. ended must
// be true if the server has ended the connection. probed and others report whether a probe or a later request may be
// the reason.
func (h *httpConn) endRequest(probe, ended bool, number int, start time.Time) (probed, others bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if probe && ended {
		h.lastProbeEnd = time.Now()
	}
	// This request counts if it is a probe, and so does a probe that has ended together with its connection since start.
	probed = h.probesInFlight > 0 || !h.lastProbeEnd.Before(start)
	if probe {
		h.probesInFlight--
	}
	return probed, h.requestCount > number
}

// retireConnection retires h: it accepts no further requests, and is closed when the requests in flight have ended.
func (h *httpConn) retireConnection() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = true
}

// recordConnection records that a request got the connection of h that info describes. ctx is the context of the
// request, as newRequestContext returned it. If the request must be sent over another httpConn, recordConnection closes
// the connection before the request is written.
func (h *httpConn) recordConnection(ctx context.Context, info httptrace.GotConnInfo) {
	if mustChangeConn(ctx) { // net/http may choose a connection for a request that is already canceled
		_ = info.Conn.Close()
	}
	h.mu.Lock()
	h.established = len(h.conns) > 0 // net/http may choose a connection that the server has just closed
	h.mu.Unlock()
	h.recordProtocol(info)
	if h.hasConnected.CompareAndSwap(false, true) && h.pool != nil {
		h.pool.distributeStreams() // further streams are available now
	}
}

// recordProtocol records whether the connection that info describes uses HTTP/2 or HTTP/1.1. It must be called when a
// request has got the connection. If h has the wrong connection limit for the protocol, later requests use a new
// httpConn of the pool.
func (h *httpConn) recordProtocol(info httptrace.GotConnInfo) {
	if info.Reused && (h.limit > 1 || h.isHTTP2.Load()) { // else unknown if the request that dialed was canceled
		return
	}
	t, ok := info.Conn.(*tls.Conn)
	isHTTP2 := ok && t.ConnectionState().NegotiatedProtocol == "h2"
	h.isHTTP2.Store(isHTTP2)
	if isHTTP2 == (h.limit == 1) || h.pool == nil {
		return
	}
	if isHTTP2 {
		h.pool.setConnLimit(1)
		h.retireConnection()
	} else {
		h.pool.setConnLimit(serialConns)
		h.retireSerialConnection()
	}
	h.pool.distributeStreams()
}

// retireSerialConnection makes h accept no further requests, because its only connection uses HTTP/1.1. Requests that
// wait for the connection are canceled with errMustChangeConn, and can use another httpConn. It must be called by the
// GotConn hook (httptrace.ClientTrace) of a request on the connection.
func (h *httpConn) retireSerialConnection() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired, h.serial = true, true
	// While the hook runs, no other request can get the connection, so no written request is canceled.
	for gotAt, cancel := range h.movable {
		if gotAt.Load() == 0 {
			cancel(errMustChangeConn)
		}
	}
}

// newRequestContext returns a context for a request over h, derived from ctx. The cause errMustChangeConn means that
// another httpConn must send the request. The caller must store in gotAt the time (Unix nanoseconds) at which the
// request gets a connection, and finally call stop.
func (h *httpConn) newRequestContext(ctx context.Context, gotAt *atomic.Int64) (_ context.Context, stop func()) {
	if h.limit > 1 || h.isHTTP2.Load() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serial {
		cancel(errMustChangeConn)
		return ctx, func() {}
	}
	if h.movable == nil {
		h.movable = make(map[*atomic.Int64]context.CancelCauseFunc)
	}
	h.movable[gotAt] = cancel // called if the connection uses HTTP/1.1, which carries one request at a time
	return ctx, func() {
		h.mu.Lock()
		delete(h.movable, gotAt)
		h.mu.Unlock()
		cancel(nil)
	}
}

// mustChangeConn reports whether a request was canceled with errMustChangeConn, in order to be sent over another
// httpConn (see newRequestContext). ctx is the context of the request, which newRequestContext has returned.
func mustChangeConn(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) == errMustChangeConn
}

// recordAnswer records that an HTTP response has arrived over h. It restarts the timer that tests a silent connection
// by a probe (a query). The timer runs for wait, or longer after recent probes. probe must be true for the response to
// a probe.
func (h *httpConn) recordAnswer(wait time.Duration, probe, isHTTP2 bool) {
	h.hasAnswered.Store(true)
	if isHTTP2 {
		h.lastAnswer.Store(time.Now().UnixNano())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = false
	if !probe {
		h.probes = 0
	}
	h.stallTimer.Reset(wait << min(h.probes, 8)) // addRequest sets probes to 0 after an idle time
}

// releaseRequest records the end of a request that addRequest has counted. After the last request, it closes h if h is
// retired.
func (h *httpConn) releaseRequest() {
	h.mu.Lock()
	h.inFlight--
	if h.inFlight == 0 {
		h.stallTimer.Stop()
	}
	last := h.inFlight == 0 && h.retired
	h.mu.Unlock()
	if last {
		h.closeConns()
	}
}

// closeConns closes all open connections of h. It must only be called when no request is in flight and none can follow.
func (h *httpConn) closeConns() {
	h.http.CloseIdleConnections()
	h.mu.Lock()
	conns := slices.Clone(h.conns)
	h.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // CloseIdleConnections misses a connection whose last request has just ended
	}
}

// connectionRTT returns the round trip time of the newest open connection as measured by the kernel. It is 0 if no
// connection is open or the time is unknown.
func (h *httpConn) connectionRTT() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.conns) == 0 {
		return 0
	}
	return kernelRTT(h.conns[len(h.conns)-1])
}

// trackConn adds c to the open connections of h. It returns a trackedConn, which removes c from them when it is closed.
func (h *httpConn) trackConn(c net.Conn) net.Conn {
	if h.pool != nil {
		h.pool.resetCapacity(h)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return &trackedConn{c, h}
}

// wasClosedByServerSince reports whether the server has closed or reset a connection of h since start. The error of a
// request does not always show this: net/http may have closed the connection itself, because another request on it had
// failed.
func (h *httpConn) wasClosedByServerSince(start time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.lastServerClose.Before(start)
}

// A trackedConn is an open connection of the httpConn h. It stores in h the time at which the server ended the
// connection. When the trackedConn is closed, it removes the connection from h.
type trackedConn struct {
	net.Conn
	h *httpConn
}

func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.recordIOError(err)
	return n, err
}

func (t *trackedConn) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	t.recordIOError(err)
	return n, err
}

// recordIOError stores the present time in httpConn.lastServerClose if err means that the server has closed or reset
// the connection (see IsClosedByServer). err is the error of a read or a write.
func (t *trackedConn) recordIOError(err error) {
	if !IsClosedByServer(err) {
		return
	}
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	t.h.lastServerClose = time.Now()
}

func (t *trackedConn) Close() error {
	t.h.mu.Lock()
	if i := slices.Index(t.h.conns, t.Conn); i >= 0 {
		t.h.conns = slices.Delete(t.h.conns, i, i+1)
	}
	if len(t.h.conns) == 0 {
		t.h.established = false
		t.h.isHTTP2.Store(false) // the server may have another protocol next time
	}
	t.h.mu.Unlock()
	return t.Conn.Close()
}
