package worlds_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

// stuckAfter is the time after which a call counts as stuck.
const stuckAfter = 5 * time.Hour

// A httpResult is the result of a call. Times are since its start.
type httpResult struct {
	began              time.Duration // since the play began
	header, first, end time.Duration
	err, panicked      string
	status             int
	cookie, location   string
	act                int // which of its acts the server played; -1: not known
	length             int64
	body, bodyErr      string
	trailer            string
	url                string // of Response.Request
	ownRequest         bool   // Response.Request is the caller's
	wrong              []string
	held               int64 // children that wait for the end of the caller's context, ten seconds after the calls
	open               bool  // the request's body, then
	later              func()
}

func (r *httpResult) String() string {
	return fmt.Sprintf("{%s%s status %d act %d header %v end %v body %.24q %s}", r.err, r.panicked, r.status, r.act, r.header, r.end, r.body, r.bodyErr)
}

// isStuck reports whether the play had to end the call.
func (r *httpResult) isStuck() bool { return r.end >= stuckAfter-time.Minute }

// answered reports whether the call ended with a response header.
func (r *httpResult) answered() bool { return r.err == "" && r.panicked == "" && !r.isStuck() }

// succeeded reports whether the response is a success by rule R1.
func (r *httpResult) succeeded() bool { return r.answered() && r.status < 400 }

// isServerFailure reports whether a status is a server failure, from which the client learns no latency.
func (c *httpClient) isServerFailure(status int) bool {
	if c.failure != 0 {
		return status == c.failure
	}
	return status == http.StatusTooManyRequests || status >= 500 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported
}

var incidental = regexp.MustCompile(`(:|stream ID |conn_|Port: )\d+`)

// normalizeError returns the text of an error without the parts that differ between connections.
func normalizeError(err error) string {
	if err == nil {
		return ""
	}
	return incidental.ReplaceAllString(err.Error(), "$1")
}

// makeCall makes a call and uses its response.
func (p *httpPlay) makeCall(root context.Context, c *httpCall) (r *httpResult) {
	r = &httpResult{began: p.since(), act: -1}
	ctx, stop := newCallerTimes(root, c.deadline, c.cancel)
	defer stop()
	var hookLate atomic.Bool // a hook was called when the call was over
	req, src := c.newRequest(p.withOverrides(c.withTrace(ctx, &hookLate), c), p.w.scheme())
	before := describeRequest(req)
	var next *bodySource // the body of the next use of the request
	giveBack := func() {
		if now := describeRequest(req); now != before {
			r.wrong = append(r.wrong, "the request was changed: "+now)
		}
		ctx.taken.Store(true)
		next = c.reuseRequest(req, (p.w.http2 || p.w.way.lags > 0) && r.err != "")
	}
	r.later = func() {
		if next != nil && next.touched.Load() {
			r.wrong = append(r.wrong, "the body of the next request was used")
		}
		if ctx.late.Load() {
			r.wrong = append(r.wrong, "the caller's context was asked for a value when it had been taken back")
		}
		if hookLate.Load() {
			r.wrong = append(r.wrong, "a hook of the caller's was called after the call")
		}
		r.held, r.open = ctx.held.Load(), src != nil && !src.isClosed()
	}
	var body io.Closer
	start := time.Now()
	defer func() {
		r.end = time.Since(start)
		if v := recover(); v != nil {
			r.panicked, _, _ = strings.Cut(fmt.Sprint(v), "\n")
			closeWithRecover(body)
			giveBack()
		}
	}()
	resp, err := p.client.RoundTrip(req)
	r.header = time.Since(start)
	if err == nil && !p.w.client.isServerFailure(resp.StatusCode) || ctx.Err() != nil {
		p.memory.addWait(p.since(), r.header)
	}
	if err != nil {
		r.err = normalizeError(err)
		giveBack()
		return r
	}
	body = resp.Body
	r.recordHeader(resp, req)
	r.readBody(resp, c.read, start)
	if c.read == "closedLate" {
		time.Sleep(late)
	}
	resp.Body.Close()
	giveBack()
	return r
}

// withOverrides adds the caller's settings of the hedged client to the context.
func (p *httpPlay) withOverrides(ctx context.Context, c *httpCall) context.Context {
	if p.hedged && c.delay > 0 {
		ctx = hedge.WithDelay(ctx, c.delay)
	}
	if p.hedged && c.allowed {
		ctx = hedge.AllowHedging(ctx)
	}
	return ctx
}

// withTrace adds the caller's httptrace hooks, if there are any. They set late after the caller owns the context again.
func (c *httpCall) withTrace(ctx *callerContext, late *atomic.Bool) context.Context {
	if !c.traced {
		return ctx
	}
	note := func() {
		if ctx.taken.Load() {
			late.Store(true)
		}
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:          func(string) { note() },
		ConnectStart:     func(string, string) { note() },
		WroteHeaderField: func(string, []string) { note() },
	})
}

// closeWithRecover closes a body that has panicked or may panic.
func closeWithRecover(body io.Closer) {
	defer func() { _ = recover() }()
	if body != nil {
		body.Close()
	}
}

// newRequest returns the request of the call, and its body if that is a bodySource.
func (c *httpCall) newRequest(ctx context.Context, scheme string) (*http.Request, *bodySource) {
	var body io.Reader
	var src *bodySource
	switch c.body {
	case "bytes":
		body = strings.NewReader(sourceText)
	case "reader", "pipe":
		src = newBodySource(c.bodyAt)
		body = src
	}
	req, err := http.NewRequestWithContext(ctx, c.method, c.url(scheme), body)
	if err != nil {
		panic(err)
	}
	if src != nil {
		req.ContentLength = int64(len(sourceText))
		if c.getBody {
			req.GetBody = func() (io.ReadCloser, error) { return newBodySource(c.bodyAt), nil }
		}
	}
	req.Header.Set(callHeader, strconv.Itoa(c.number))
	if name, value, ok := strings.Cut(c.header, ": "); ok {
		req.Header[name] = []string{value}
	}
	addConfidential(req, c.tells)
	return req, src
}

func describeRequest(req *http.Request) string {
	return fmt.Sprint(req.Method, req.URL, req.Header, req.ContentLength, req.Host, req.Close, len(req.Trailer))
}

// reuseRequest changes the request as a caller may after the call. net/http over HTTP/2 returns an error of the context
// while it still reads the request; that is not checked here.
func (c *httpCall) reuseRequest(req *http.Request, stillRead bool) (next *bodySource) {
	if stillRead {
		return nil
	}
	switch c.reuse {
	case "header":
		req.Header.Set(callHeader, strconv.Itoa(poisoned))
		req.URL.Path, req.URL.RawQuery = poisonedPath, poisonedQuery
	case "body":
		next = newBodySource(0)
		next.forbidden.Store(true)
		req.Body = next
	case "noBody":
		req.Body = nil
	}
	return next
}

// recordHeader records the header of a response.
func (r *httpResult) recordHeader(resp *http.Response, req *http.Request) {
	r.status, r.length = resp.StatusCode, resp.ContentLength
	r.cookie, r.location = resp.Header.Get("Set-Cookie"), resp.Header.Get("Location")
	r.ownRequest, r.url = resp.Request == req, resp.Request.URL.String()
	if n, err := strconv.Atoi(resp.Header.Get(winnerHeader)); err == nil {
		r.act = n
	}
}

// partialRead is the number of bytes that a caller reads at least if it does not read the whole body.
const partialRead = 4

// The pauses of slow readers and of callers that close late.
const (
	perByte = 5 * time.Microsecond
	late    = 3 * time.Second
)

// readerPauses returns the total pause of the reader of a body of n bytes, until it has closed the body.
func (c *httpCall) readerPauses(n int) time.Duration {
	switch c.read {
	case "slowly":
		return time.Duration(n) * perByte
	case "closedLate":
		return late
	}
	return 0
}

// readBody reads the body in one of several ways.
func (r *httpResult) readBody(resp *http.Response, how string, start time.Time) {
	var all []byte
	buf := make([]byte, 32<<10)
	for how != "never" {
		n, err := resp.Body.Read(buf)
		if len(all) == 0 && n > 0 {
			r.first = time.Since(start)
		}
		all = append(all, buf[:n]...)
		if how == "slowly" { // by the byte, also of the last read: how reads are split is left to the connection
			time.Sleep(time.Duration(n) * perByte)
		}
		if err != nil {
			if err != io.EOF {
				r.bodyErr = normalizeError(err)
			}
			break
		}
		if how == "half" && len(all) >= partialRead {
			break
		}
	}
	if how == "half" { // the size of one Read depends on the connection
		all = all[:min(len(all), partialRead)]
	}
	r.body, r.trailer = string(all), fmt.Sprint(resp.Trailer)
}
