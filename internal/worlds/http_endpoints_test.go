package worlds_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge"
)

// httpEndpoints has the settings of WithEndpoints. All endpoints are the same server, which recognizes them by the Host
// header.
type httpEndpoints struct {
	endpoints int // besides the first one; 0: there is no choice
	away      time.Duration
	quicker   bool // than the first one
	down      bool // the first endpoint fails the warm-up
	cost      int
	prepare   string // the behaviour of Prepare at endpoint 1
	location  string // where a redirect leads
}

const secret = "s3cret"

// confidential has the parts of a request that must not reach another host.
var confidential = []string{"Authorization: Bearer " + secret, "Cookie: a=" + secret, "X-Api-Key: " + secret, "X-Tenant: " + secret, "referer: http://shop.test/?" + secret,
	"?q=" + secret, "?page=1&sig=" + secret, "?" + secret, "?page=1;" + secret, ";jsessionid=" + secret, "user:" + secret}

func newHTTPElsewhere(d *generator, w *httpScenario) (e httpEndpoints) {
	if w.server.unmarked || w.way.rewrite || w.way.cache || w.way.replicas || w.past.large {
		return e // the server could not distinguish the endpoints
	}
	if e.endpoints = drawPart(d, "elsewhere", .15, 0, 1, 2); e.endpoints == 0 {
		return e
	}
	e.away = drawPart(d, "elsewhere.away", .3, 3*ms, 80*ms)
	e.cost = drawPart(d, "elsewhere.cost", .5, 1, 2, 3, 7)
	prepares := []string{"signs", "signs", "body", "fails", "panics", "noURL"}
	if w.client.judges || w.way.headerTimeout > 0 || w.way.upgraded { // the first endpoint can be ejected then, so Prepare can fail the call
		prepares = prepares[:3]
	}
	e.prepare = drawPart(d, "elsewhere.prepare", .7, "", prepares...)
	e.location = drawPart(d, "elsewhere.location", .7, "first", "itself", "relative", "leaves")
	if e.prepare == "" || e.prepare == "signs" || e.prepare == "body" {
		e.quicker = drawFlag(d, "elsewhere.quicker", .2)
		e.down = !e.quicker && w.past.outage == 0 && drawFlag(d, "elsewhere.down", .3)
	}
	if e.quicker {
		w.past.calls = 90
	}
	return e
}

// addConfidential adds a part that must not reach another host to a request.
func addConfidential(req *http.Request, what string) {
	name, value, isHeader := strings.Cut(what, ": ")
	rest := strings.TrimLeft(what, "?;")
	switch {
	case what == "":
	case isHeader:
		req.Header[name] = []string{value}
	case what[0] == '?':
		req.URL.RawQuery = rest
	case what[0] == ';':
		req.URL.Path += what
	default:
		req.URL.User = url.UserPassword("user", secret)
	}
}

func endpointHost(n int) string { return fmt.Sprintf("endpoint%d.test", n) }

// endpointOf returns the number of an endpoint by its host, or 0 for the first endpoint and other hosts.
func endpointOf(host string) (n int) {
	if _, err := fmt.Sscanf(host, "endpoint%d.test", &n); err != nil {
		return 0
	}
	return n
}

// mirrorPath is the path of endpoint 1.
const mirrorPath = "/mirror"

// newOption returns WithEndpoints.
func (e *httpEndpoints) newOption(p *httpPlay) hedge.HTTPOption {
	all := []hedge.Endpoint{{URL: p.w.scheme() + "://shop.test"}}
	for n := 1; n <= e.endpoints; n++ {
		one := hedge.Endpoint{URL: p.w.scheme() + "://" + endpointHost(n), Cost: e.cost, Keep: []string{callHeader, attemptHeader, "page"}}
		if n == 1 {
			one.URL, one.Drop = one.URL+mirrorPath, []string{"x-ten*"}
			if e.prepare != "" {
				one.Prepare = func(r *http.Request) error { return e.applyPrepare(p, r) }
			}
		}
		all = append(all, one)
	}
	return hedge.WithEndpoints(all...)
}

// applyPrepare is the Prepare function.
func (e *httpEndpoints) applyPrepare(p *httpPlay, r *http.Request) error {
	if told := fmt.Sprint(r.URL, r.Header); strings.Contains(told, secret) {
		p.note("6 secret", "Prepare is given it: "+told)
	}
	switch e.prepare {
	case "fails":
		return errors.New("Prepare")
	case "panics":
		panic("Prepare")
	case "noURL":
		r.URL = nil
		return nil
	case "body":
		if r.Body != nil {
			text := "body of " + r.Host
			p.prepared.Add(1)
			r.Body, r.ContentLength = &preparedBody{Reader: strings.NewReader(text), p: p}, int64(len(text))
			r.Header.Set(signature, p.w.signRequest(r, []byte(text)))
			return nil
		}
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return err
		}
	}
	r.Header.Set(signature, p.w.signRequest(r, body))
	return nil
}

// A preparedBody is a body that is counted until it is closed.
type preparedBody struct {
	io.Reader
	p      *httpPlay
	closed bool
}

func (b *preparedBody) Close() error {
	if !b.closed {
		b.closed = true
		b.p.prepared.Add(-1)
	}
	return nil
}

const signature = "X-Signature"

// unsignedHeaders are the signature and the headers that net/http adds.
var unsignedHeaders = []string{signature, "Accept-Encoding", "Connection", "Content-Length", "User-Agent"}

// signRequest returns a signature of a whole request. A layer of hedging below adds the number of a hedge after that: while
// the layer above has no hedge delay, the layer below hedges its requests.
func (w *httpScenario) signRequest(r *http.Request, body []byte) string {
	h := sha256.New()
	fmt.Fprintln(h, r.Method, r.URL.RequestURI(), r.Host)
	all := make(http.Header)
	for name, values := range r.Header {
		all[http.CanonicalHeaderKey(name)] = values
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		isAdded := w.way.layers > 1 && (name == attemptHeader || name == hedge.AttemptHeader)
		if !isAdded && !slices.Contains(unsignedHeaders, name) {
			fmt.Fprintln(h, name, all[name])
		}
	}
	h.Write(body)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// hostWithoutPort returns the host that a request was sent to.
func hostWithoutPort(r *http.Request) string {
	name, _, _ := strings.Cut(r.Host, ":")
	return name
}

// checkAtEndpoint checks a request that has reached an endpoint. It returns the additional latency of the endpoint.
func (p *httpPlay) checkAtEndpoint(r *http.Request, number int) (takes time.Duration) {
	e := &p.w.elsewhere
	at := endpointOf(hostWithoutPort(r))
	if e.endpoints == 0 || at == 0 {
		if e.quicker && hostWithoutPort(r) == "shop.test" {
			takes = e.away
		}
		return takes
	}
	if told := fmt.Sprint(r.URL, r.Header); strings.Contains(told, secret) {
		p.note("6 secret", fmt.Sprintf("it reaches %s: %s", r.Host, told))
	}
	if number < 0 && -number%p.w.past.hosts > 0 {
		p.note("6 host", fmt.Sprintf("a call for another host reaches %s", r.Host))
	}
	if at == 1 && !strings.HasPrefix(r.URL.Path, mirrorPath+"/") {
		p.note("6 host", fmt.Sprintf("%s is not below the endpoint", r.URL))
	}
	if at == 1 && e.prepare != "" {
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil && r.Header.Get(signature) != p.w.signRequest(r, body) {
			p.note("6 signature", fmt.Sprintf("%s is not sent %s as Prepare has left it: %s %s %v %q", r.Host, signature, r.Method, r.URL, r.Header, body))
		}
	}
	if !e.quicker {
		takes = e.away
	}
	return takes
}

// costOf returns the cost of a hedge to a host in tokens.
func (e *httpEndpoints) costOf(host string) int {
	if endpointOf(host) > 0 {
		return e.cost
	}
	return 1
}

// setHeaders sets the headers of a response that have names of endpoints.
func (e *httpEndpoints) setHeaders(h http.Header, r *http.Request, scheme string, status, attempt int) {
	if e.endpoints == 0 {
		return
	}
	h.Set("Set-Cookie", "of="+hostWithoutPort(r))
	if status != http.StatusMovedPermanently {
		return
	}
	to := scheme + "://shop.test/moved"
	switch {
	case e.location == "itself" && endpointOf(hostWithoutPort(r)) == 1:
		to = scheme + "://" + hostWithoutPort(r) + mirrorPath + "/moved"
	case e.location == "itself":
		to = scheme + "://" + hostWithoutPort(r) + "/moved"
	case e.location == "relative":
		to = "moved"
	case e.location == "leaves" && endpointOf(hostWithoutPort(r)) > 0 && attempt > 0: // or it is the call's own failure
		to = scheme + "://nowhere.test/moved"
	}
	h.Set("Location", to)
}

// checkOrigin checks an answer by its endpoint. It reports whether that is not the first endpoint.
func (j *httpChecker) checkOrigin(c *httpCall, b *httpResult, say reportFunc) (elsewhere bool) {
	u, err := url.Parse(b.url)
	if err != nil || endpointOf(u.Hostname()) == 0 {
		return false
	}
	if b.ownRequest {
		say("6 request", "Response.Request is the caller's, and "+u.Host+" has answered")
	}
	if b.cookie != "" {
		say("6 cookie", "the caller is given one of "+u.Host+": "+b.cookie)
	}
	if to, err := url.Parse(b.location); err != nil || b.location != "" && to.Hostname() != "shop.test" {
		say("6 redirect", "from "+u.Host+" to "+b.location)
	}
	return true
}

// checkEndpoints checks the endpoints of the attempts of a call.
func (j *httpChecker) checkEndpoints(c *httpCall, say reportFunc) {
	once := c.isSingleUse(j.w.client.firstByte) || !c.hasSafeMethod() && !c.allowed && !j.w.client.isDeclaredSafe(c)
	for _, a := range j.hedged.arrivals[c.number] {
		switch {
		case endpointOf(a.host) == 0:
		case once:
			say("3 endpoint", fmt.Sprintf("%s %s may not be hedged, and goes to %s", c.method, c.path, a.host))
		}
	}
}
