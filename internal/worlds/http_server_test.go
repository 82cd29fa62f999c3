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

// An arrival is a request that the server saw.
type arrival struct {
	attempt int
	host    string
	conn    *serverConn
	at      time.Duration // since the play began, as all times here
	failed  time.Duration // when the server said that it failed; 0: it did not
	answers time.Duration // when the server began to send its answer; 0: it did not
	left    time.Duration // when the client went away; 0: it did not
}

// A serverConn is what the server knows of a connection.
type serverConn struct{ known atomic.Bool }

type serverConnKey struct{}

func (p *httpPlay) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	number, _ := strconv.Atoi(r.Header.Get(callHeader))
	takes := p.check(r, number)
	switch {
	case r.Method == "HEAD" && r.URL.Path == "/warm":
	case number <= 0:
		p.servePast(rw, r, takes)
	case isChanged(r):
		p.note("6 touched", "a request is sent as its caller has changed it since")
	default:
		p.serveCall(rw, r, p.w.calls[number-1], takes)
	}
}

func (p *httpPlay) servePast(rw http.ResponseWriter, r *http.Request, takes time.Duration) {
	r.Context().Value(serverConnKey{}).(*serverConn).known.Store(true)
	if attempt, _ := strconv.Atoi(r.Header.Get(attemptHeader)); attempt > 0 {
		p.mu.Lock()
		p.hedges++
		p.spent += p.w.elsewhere.costs(host(r))
		p.mu.Unlock()
	}
	pause(r, 10*ms+p.w.past.outage+takes)
	if p.w.elsewhere.down && !p.present.Load() && host(r) == "shop.test" {
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	if p.w.past.large {
		resumable(rw.Header(), 100_000)
		rw.Write(make([]byte, 100_000))
		return
	}
	io.WriteString(rw, "past")
}

// resumable says in a header what WithResume needs.
func resumable(h http.Header, length int) {
	h.Set("ETag", `"x"`)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.Itoa(length))
}

// isChanged reports whether a request has a header, a path or a query that its caller has set after the call.
func isChanged(r *http.Request) bool {
	return r.Header.Get(callHeader) == strconv.Itoa(poisoned) || strings.HasSuffix(r.URL.Path, poisonedPath) || strings.Contains(r.URL.RawQuery, poisonedQuery)
}

// pause waits, and ends the handler if the client goes away.
func pause(r *http.Request, d time.Duration) {
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
	a := &arrival{attempt: attempt, host: host(r), conn: conn, at: p.since()}
	p.mu.Lock()
	order := len(p.arrivals[c.number])
	p.arrivals[c.number] = append(p.arrivals[c.number], a)
	if attempt > 0 {
		p.hedges++
		p.spent += p.w.elsewhere.costs(a.host)
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
		pause(r, act.hintAt)
		rw.WriteHeader(act.hint)
	}
	pause(r, 5*ms+act.wait+p.w.past.outage+takes)
	if act.reset || act.status >= 400 {
		failed()
	}
	if act.reset {
		breakOff(rw, r)
	}
	p.mu.Lock()
	a.answers = p.since()
	p.mu.Unlock()
	p.answer(rw, r, c, act, attempt+p.shift)
}

// breakOff breaks the connection off within the header, so that net/http does not send the request again by itself.
func breakOff(rw http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		if conn, buf, err := rw.(http.Hijacker).Hijack(); err == nil {
			_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nX-Brok")
			_ = buf.Flush()
			conn.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// answer sends what an act says.
func (p *httpPlay) answer(rw http.ResponseWriter, r *http.Request, c *httpCall, act httpAct, attempt int) {
	h, status := rw.Header(), act.status
	p.w.elsewhere.endpoint(h, r, p.w.scheme(), status, attempt)
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
		text = large(c.number)
		status, text = oneRange(h, r, status, text)
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
			pause(r, act.stall)
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

// largeLength is that of a large body.
const largeLength = 200_000

// large returns the large body of a call, of which no two parts are the same.
func large(call int) []byte {
	b := make([]byte, 0, largeLength)
	for len(b) < largeLength {
		b = fmt.Appendf(b, "%d:%d ", call, len(b))
	}
	return b[:largeLength]
}

// oneRange is what a request for one range, to a byte or to the end, asks for.
func oneRange(h http.Header, r *http.Request, status int, text []byte) (int, []byte) {
	resumable(h, len(text))
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
