package worlds_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	callHeader    = "X-Call"
	attemptHeader = "X-Attempt"
	winnerHeader  = "X-Act" // which of its acts the server played
	poisoned      = 99      // the number in a request that the caller has changed since
	poisonedPath  = "/poisoned"
	poisonedQuery = "call=poisoned"
)

// An arrival is a request at the server.
type arrival struct {
	attempt int
	host    string
	conn    *serverConn
	at      time.Duration // since the play began, as all times here
	failed  time.Duration // when the server said that it failed; 0: it did not
	isLocal bool          // it failed in a way in which another endpoint may not
	answers time.Duration // when the server began to send its answer; 0: it did not
	left    time.Duration // when the client went away; 0: it did not
}

// records returns the requests of a call at the server in the form that scenarios of all protocols have.
func (p *httpPlay) records(call int) (all []attemptRecord) {
	for _, a := range p.arrivals[call] {
		r := attemptRecord{number: a.attempt, endpoint: a.host, at: a.at}
		if a.isLocal {
			r.failedHere = a.failed
		}
		all = append(all, r)
	}
	return all
}

// A serverConn is the state of a connection at the server.
type serverConn struct{ known atomic.Bool }

type serverConnKey struct{}

func (p *httpPlay) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	number, _ := strconv.Atoi(r.Header.Get(callHeader))
	takes := p.checkAtEndpoint(r, number)
	switch {
	case r.Method == "HEAD" && r.URL.Path == "/warm":
	case number <= 0:
		p.serveWarmUp(rw, r, takes)
	case isChanged(r):
		p.note("6 touched", "a request is sent as its caller has changed it since")
	default:
		p.serveCall(rw, r, p.w.calls[number-1], takes)
	}
}

func (p *httpPlay) serveWarmUp(rw http.ResponseWriter, r *http.Request, takes time.Duration) {
	r.Context().Value(serverConnKey{}).(*serverConn).known.Store(true)
	if attempt, _ := strconv.Atoi(r.Header.Get(attemptHeader)); attempt > 0 {
		p.mu.Lock()
		p.hedges++
		p.spent += p.w.elsewhere.costOf(hostWithoutPort(r))
		p.mu.Unlock()
	}
	waitOrAbort(r, 10*ms+p.w.past.outage+takes)
	if p.w.elsewhere.down && !p.present.Load() && hostWithoutPort(r) == "shop.test" {
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	if p.w.past.large {
		setResumable(rw.Header(), 100_000)
		rw.Write(make([]byte, 100_000))
		return
	}
	io.WriteString(rw, "past")
}

// setResumable sets the headers that WithResume needs.
func setResumable(h http.Header, length int) {
	h.Set("ETag", `"x"`)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.Itoa(length))
}

// isChanged reports whether a request has a header, a path or a query that its caller set after the call.
func isChanged(r *http.Request) bool {
	return r.Header.Get(callHeader) == strconv.Itoa(poisoned) || strings.HasSuffix(r.URL.Path, poisonedPath) || strings.Contains(r.URL.RawQuery, poisonedQuery)
}

// waitOrAbort waits for d, and aborts the handler if the client is gone.
func waitOrAbort(r *http.Request, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

func (p *httpPlay) since() time.Duration { return time.Since(p.start) }

func (p *httpPlay) serveCall(rw http.ResponseWriter, r *http.Request, c *httpCall, takes time.Duration) {
	conn := r.Context().Value(serverConnKey{}).(*serverConn)
	attempt, _ := strconv.Atoi(r.Header.Get(attemptHeader))
	a := &arrival{attempt: attempt, host: hostWithoutPort(r), conn: conn, at: p.since()}
	p.mu.Lock()
	order := len(p.arrivals[c.number])
	p.arrivals[c.number] = append(p.arrivals[c.number], a)
	if attempt > 0 {
		p.hedges++
		p.spent += p.w.elsewhere.costOf(a.host)
	}
	p.mu.Unlock()
	if p.w.server.unmarked {
		attempt = order
	}
	defer func() {
		if r.Context().Err() != nil {
			p.mu.Lock()
			a.left = p.since()
			p.mu.Unlock()
		}
	}()
	failed := func() {
		p.mu.Lock()
		a.failed = p.since()
		p.mu.Unlock()
	}
	rw.Header().Set(winnerHeader, strconv.Itoa(attempt))
	_, _ = io.ReadAll(r.Body)
	if p.w.server.nonce && order > 0 || p.w.server.connAuth && !conn.known.Load() {
		failed()
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	act := c.acts[min(attempt+p.shift, len(c.acts)-1)]
	if p.limiter != nil && p.w.server.releases {
		p.limiter.Release(r.Context())
	}
	if act.hint > 0 {
		waitOrAbort(r, act.hintAt)
		rw.WriteHeader(act.hint)
	}
	waitOrAbort(r, 5*ms+act.wait+p.w.past.outage+takes)
	if act.reset || act.status >= 400 {
		failed()
		a.isLocal = act.reset || act.status == 502 || act.status == 504 || act.status == 503 && act.retryAfter == ""
	}
	if act.reset {
		breakConnection(rw, r)
	}
	p.mu.Lock()
	a.answers = p.since()
	p.mu.Unlock()
	p.sendResponse(rw, r, c, act, attempt+p.shift)
}

// breakConnection closes the connection within the header. net/http does not retry the request after that.
func breakConnection(rw http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		if conn, buf, err := rw.(http.Hijacker).Hijack(); err == nil {
			_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nX-Brok")
			_ = buf.Flush()
			conn.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// sendResponse sends the response of a step.
func (p *httpPlay) sendResponse(rw http.ResponseWriter, r *http.Request, c *httpCall, act httpStep, attempt int) {
	h, status := rw.Header(), act.status
	p.w.elsewhere.setHeaders(h, r, p.w.scheme(), status, attempt)
	if act.retryAfter != "" {
		h.Set("Retry-After", act.retryAfter)
	}
	if act.leaves {
		h.Set("Connection", "close")
	}
	if status == http.StatusNoContent || status == http.StatusNotModified {
		rw.WriteHeader(status)
		return
	}
	text := fmt.Appendf(nil, "call %d attempt %d", c.number, attempt)
	switch act.body {
	case "empty":
		text = nil
	case "large": // the same from each attempt, so that the rest of one can come from another
		text = largeBody(c.number)
		status, text = applyRange(h, r, status, text)
	case "gzip":
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			var buf bytes.Buffer
			z := gzip.NewWriter(&buf)
			z.Write(text)
			z.Close()
			text = buf.Bytes()
			h.Set("Content-Encoding", "gzip")
		}
	}
	if act.trailer {
		h.Set("Trailer", "X-Sum")
	} else if act.body != "chunked" {
		h.Set("Content-Length", strconv.Itoa(len(text)))
	}
	rw.WriteHeader(status)
	if r.Method != http.MethodHead {
		rw.Write(text[:len(text)/2])
		if act.stall > 0 || act.cut || act.body == "chunked" {
			_ = http.NewResponseController(rw).Flush()
			waitOrAbort(r, act.stall)
		}
		if act.cut {
			panic(http.ErrAbortHandler)
		}
		rw.Write(text[len(text)/2:])
	}
	if act.trailer {
		h.Set("X-Sum", strconv.Itoa(len(text)))
	}
}

// largeLength is the length of a large body.
const largeLength = 200_000

// largeBody returns the large body of a call. No two parts of it are equal.
func largeBody(call int) []byte {
	b := make([]byte, 0, largeLength)
	for len(b) < largeLength {
		b = fmt.Appendf(b, "%d:%d ", call, len(b))
	}
	return b[:largeLength]
}

// applyRange returns the status and the bytes for a request with one range, to a byte or to the end.
func applyRange(h http.Header, r *http.Request, status int, text []byte) (int, []byte) {
	setResumable(h, len(text))
	asked, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	from, to, _ := strings.Cut(asked, "-")
	first, err := strconv.Atoi(from)
	if !ok || err != nil || status != http.StatusOK {
		return status, text
	}
	last := len(text) - 1
	if n, err := strconv.Atoi(to); err == nil {
		last = min(last, n)
	}
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(text)))
	return http.StatusPartialContent, text[first : last+1]
}
