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

// hangs is the time after which nobody waits any longer for calls.
const hangs = 5 * time.Hour

// A httpResult is what a caller saw. Times are since the call began.
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
	held               int64 // what waits for the end of the caller's context, ten seconds after the calls
	open               bool  // the request's body, then
	later              func()
}

func (r *httpResult) String() string {
	return fmt.Sprintf("{%s%s status %d act %d header %v end %v body %.24q %s}", r.err, r.panicked, r.status, r.act, r.header, r.end, r.body, r.bodyErr)
}

// hung reports whether the caller had to be freed.
func (r *httpResult) hung() bool { return r.end >= hangs-time.Minute }

// answered reports whether the call ended with a header.
func (r *httpResult) answered() bool { return r.err == "" && r.panicked == "" && !r.hung() }

// good reports whether the header says success, by rule R1.
func (r *httpResult) good() bool { return r.answered() && r.status < 400 }

// fails reports whether a status says that the server failed, of which nobody learns how long an answer takes.
func (c *httpClient) fails(status int) bool {
	if c.failure != 0 {
		return status == c.failure
	}
	return status == http.StatusTooManyRequests || status >= 500 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported
}

var incidental = regexp.MustCompile(`(:|stream ID |conn_|Port: )\d+`)

// errorText is an error without what differs from connection to connection.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return incidental.ReplaceAllString(err.Error(), "$1")
}

// call makes a call and uses what comes of it.
func (p *httpPlay) call(root context.Context, c *httpCall) (r *httpResult) {
	r = &httpResult{began: p.since(), act: -1}
	ctx, stop := callerTimes(root, c.deadline, c.cancel)
	defer stop()
	var hookLate atomic.Bool // a hook was called when the call was over
	req, src := c.request(p.overrides(c.trace(ctx, &hookLate), c), p.w.scheme())
	before := describe(req)
	var next *source // what the caller uses the request for when it has it back
	giveBack := func() {
		if now := describe(req); now != before {
			r.wrong = append(r.wrong, "the request was changed: "+now)
		}
		ctx.taken.Store(true)
		next = c.useAgain(req, (p.w.http2 || p.w.way.lags > 0) && r.err != "")
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
			closeAnyway(body)
			giveBack()
		}
	}()
	resp, err := p.client.RoundTrip(req)
	r.header = time.Since(start)
	if err == nil && !p.w.client.fails(resp.StatusCode) || ctx.Err() != nil {
		p.memory.learn(p.since(), r.header)
	}
	if err != nil {
		r.err = errorText(err)
		giveBack()
		return r
	}
	body = resp.Body
	r.take(resp, req)
	r.read(resp, c.read, start)
	if c.read == "closedLate" {
		time.Sleep(late)
	}
	resp.Body.Close()
	giveBack()
	return r
}

// overrides adds to the context what the caller asks of the hedged client.
func (p *httpPlay) overrides(ctx context.Context, c *httpCall) context.Context {
	if p.hedged && c.delay > 0 {
		ctx = hedge.WithDelay(ctx, c.delay)
	}
	if p.hedged && c.allowed {
		ctx = hedge.AllowHedging(ctx)
	}
	return ctx
}

// trace adds the caller's httptrace hooks, if it has them. They set late when the context has been taken back.
func (c *httpCall) trace(ctx *callerContext, late *atomic.Bool) context.Context {
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

// closeAnyway closes a body that panicked, or that may panic again.
func closeAnyway(body io.Closer) {
	defer func() { _ = recover() }()
	if body != nil {
		body.Close()
	}
}

// request makes the call's request. The source is its body, if that is no simple one.
func (c *httpCall) request(ctx context.Context, scheme string) (*http.Request, *source) {
	var body io.Reader
	var src *source
	switch c.body {
	case "bytes":
		body = strings.NewReader(sourceText)
	case "reader", "pipe":
		src = newSource(c.bodyAt)
		body = src
	}
	req, err := http.NewRequestWithContext(ctx, c.method, c.url(scheme), body)
	if err != nil {
		panic(err)
	}
	if src != nil {
		req.ContentLength = int64(len(sourceText))
		if c.getBody {
			req.GetBody = func() (io.ReadCloser, error) { return newSource(c.bodyAt), nil }
		}
	}
	req.Header.Set(callHeader, strconv.Itoa(c.number))
	if name, value, ok := strings.Cut(c.header, ": "); ok {
		req.Header[name] = []string{value}
	}
	tell(req, c.tells)
	return req, src
}

func describe(req *http.Request) string {
	return fmt.Sprint(req.Method, req.URL, req.Header, req.ContentLength, req.Host, req.Close, len(req.Trailer))
}

// useAgain does with the request what a caller may do that has it back. net/http over HTTP/2 returns an error of the context while
// it still reads the request: that it does so is not judged here.
func (c *httpCall) useAgain(req *http.Request, stillRead bool) (next *source) {
	if stillRead {
		return nil
	}
	switch c.reuse {
	case "header":
		req.Header.Set(callHeader, strconv.Itoa(poisoned))
		req.URL.Path, req.URL.RawQuery = poisonedPath, poisonedQuery
	case "body":
		next = newSource(0)
		next.forbidden.Store(true)
		req.Body = next
	case "noBody":
		req.Body = nil
	}
	return next
}

// take notes the header of a response.
func (r *httpResult) take(resp *http.Response, req *http.Request) {
	r.status, r.length = resp.StatusCode, resp.ContentLength
	r.cookie, r.location = resp.Header.Get("Set-Cookie"), resp.Header.Get("Location")
	r.ownRequest, r.url = resp.Request == req, resp.Request.URL.String()
	if n, err := strconv.Atoi(resp.Header.Get(winnerHeader)); err == nil {
		r.act = n
	}
}

// half is how much of a body is read at least by who does not read it whole.
const half = 4

// What slow readers do, and who closes late.
const (
	perByte = 5 * time.Microsecond
	late    = 3 * time.Second
)

// pauses returns how long the reader of a body of n bytes does something else, until it has closed that.
func (c *httpCall) pauses(n int) time.Duration {
	switch c.read {
	case "slowly":
		return time.Duration(n) * perByte
	case "closedLate":
		return late
	}
	return 0
}

// read reads the body in one of several ways.
func (r *httpResult) read(resp *http.Response, how string, start time.Time) {
	var all []byte
	buf := make([]byte, 32<<10)
	for how != "never" {
		n, err := resp.Body.Read(buf)
		if len(all) == 0 && n > 0 {
			r.first = time.Since(start)
		}
		all = append(all, buf[:n]...)
		if err != nil {
			if err != io.EOF {
				r.bodyErr = errorText(err)
			}
			break
		}
		if how == "half" && len(all) >= half {
			break
		}
		if how == "slowly" { // by the byte: how reads are split is left to the connection
			time.Sleep(time.Duration(n) * perByte)
		}
	}
	if how == "half" { // what comes in one Read is up to the connection
		all = all[:min(len(all), half)]
	}
	r.body, r.trailer = string(all), fmt.Sprint(resp.Trailer)
}
