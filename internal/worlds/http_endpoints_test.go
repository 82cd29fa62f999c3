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

// A httpElsewhere is other endpoints, for WithEndpoints. They are the same server, which knows by the Host of a request where that was sent to.
type httpElsewhere struct {
	endpoints int // besides the first one; 0: there is no choice
	away      time.Duration
	quicker   bool // than the first one
	down      bool // the first one fails what comes before the calls
	cost      int
	prepare   string // what Prepare does at the first of them
	location  string // where a redirect leads
}

const secret = "s3cret"

// tells are what of a call may not reach another host. Where it says header, that has a name.
var tells = []string{"Authorization: Bearer " + secret, "Cookie: a=" + secret, "X-Api-Key: " + secret, "X-Tenant: " + secret, "referer: http://shop.test/?" + secret,
	"?q=" + secret, "?page=1&sig=" + secret, "?" + secret, "?page=1;" + secret, ";jsessionid=" + secret, "user:" + secret}

func newHTTPElsewhere(d *draw, w *httpWorld) (e httpElsewhere) {
	if w.server.unmarked || w.way.rewrite || w.way.cache || w.way.replicas || w.past.large {
		return e // the server would not know who asks whom
	}
	if e.endpoints = pick(d, "elsewhere", .15, 0, 1, 2); e.endpoints == 0 {
		return e
	}
	e.away = pick(d, "elsewhere.away", .3, 3*ms, 80*ms)
	e.cost = pick(d, "elsewhere.cost", .5, 1, 2, 3, 7)
	prepares := []string{"signs", "signs", "body", "fails", "panics", "noURL"}
	if w.client.judges || w.way.headerTimeout > 0 || w.way.upgraded { // then the first endpoint can be ejected, and what Prepare does is the call's
		prepares = prepares[:3]
	}
	e.prepare = pick(d, "elsewhere.prepare", .7, "", prepares...)
	e.location = pick(d, "elsewhere.location", .7, "first", "itself", "relative", "leaves")
	if e.prepare == "" || e.prepare == "signs" || e.prepare == "body" {
		e.quicker = has(d, "elsewhere.quicker", .2)
		e.down = !e.quicker && w.past.outage == 0 && has(d, "elsewhere.down", .3)
	}
	if e.quicker {
		w.past.calls = 90
	}
	return e
}

// tell adds to a request what may not reach another host.
func tell(req *http.Request, what string) {
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

// endpointOf returns which endpoint a host is, but the first; 0: it is none.
func endpointOf(host string) (n int) {
	if _, err := fmt.Sscanf(host, "endpoint%d.test", &n); err != nil {
		return 0
	}
	return n
}

// mirror is the path of the first of the other endpoints.
const mirror = "/mirror"

// option is WithEndpoints.
func (e *httpElsewhere) option(p *httpPlay) hedge.HTTPOption {
	all := []hedge.Endpoint{{URL: p.w.scheme() + "://shop.test"}}
	for n := 1; n <= e.endpoints; n++ {
		one := hedge.Endpoint{URL: p.w.scheme() + "://" + endpointHost(n), Cost: e.cost, Keep: []string{callHeader, attemptHeader, "page"}}
		if n == 1 {
			one.URL, one.Drop = one.URL+mirror, []string{"x-ten*"}
			if e.prepare != "" {
				one.Prepare = func(r *http.Request) error { return e.prepared(p, r) }
			}
		}
		all = append(all, one)
	}
	return hedge.WithEndpoints(all...)
}

// prepared is Prepare.
func (e *httpElsewhere) prepared(p *httpPlay, r *http.Request) error {
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
			r.Header.Set(signature, sign(r.Method, r.URL.RequestURI(), r.Host, r.Header, []byte(text)))
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
	r.Header.Set(signature, sign(r.Method, r.URL.RequestURI(), r.Host, r.Header, body))
	return nil
}

// A preparedBody is counted until it is closed.
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

// unsigned are headers that net/http adds, beside the signature.
var unsigned = []string{signature, "Accept-Encoding", "Connection", "Content-Length", "User-Agent"}

// sign is a signature of all that a request has.
func sign(method, uri, host string, header http.Header, body []byte) string {
	h := sha256.New()
	fmt.Fprintln(h, method, uri, host)
	all := make(http.Header)
	for name, values := range header {
		all[http.CanonicalHeaderKey(name)] = values
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(unsigned, name) {
			fmt.Fprintln(h, name, all[name])
		}
	}
	h.Write(body)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// host is where a request was sent to, without a port.
func host(r *http.Request) string {
	name, _, _ := strings.Cut(r.Host, ":")
	return name
}

// check looks at a request that has reached an endpoint. It returns how much longer than usual that takes to answer.
func (p *httpPlay) check(r *http.Request, number int) (takes time.Duration) {
	e := &p.w.elsewhere
	at := endpointOf(host(r))
	if e.endpoints == 0 || at == 0 {
		if e.quicker && host(r) == "shop.test" {
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
	if at == 1 && !strings.HasPrefix(r.URL.Path, mirror+"/") {
		p.note("6 host", fmt.Sprintf("%s is not below the endpoint", r.URL))
	}
	if at == 1 && e.prepare != "" {
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil && r.Header.Get(signature) != sign(r.Method, r.URL.RequestURI(), r.Host, r.Header, body) {
			p.note("6 signature", fmt.Sprintf("%s is not sent %s as Prepare has left it: %s %s %v %q", r.Host, signature, r.Method, r.URL, r.Header, body))
		}
	}
	if !e.quicker {
		takes = e.away
	}
	return takes
}

// costs is what a hedge that has come to a host costs.
func (e *httpElsewhere) costs(host string) int {
	if endpointOf(host) > 0 {
		return e.cost
	}
	return 1
}

// endpoint sets the headers of a response that tell of endpoints.
func (e *httpElsewhere) endpoint(h http.Header, r *http.Request, scheme string, status, attempt int) {
	if e.endpoints == 0 {
		return
	}
	h.Set("Set-Cookie", "of="+host(r))
	if status != http.StatusMovedPermanently {
		return
	}
	to := scheme + "://shop.test/moved"
	switch {
	case e.location == "itself" && endpointOf(host(r)) == 1:
		to = scheme + "://" + host(r) + mirror + "/moved"
	case e.location == "itself":
		to = scheme + "://" + host(r) + "/moved"
	case e.location == "relative":
		to = "moved"
	case e.location == "leaves" && endpointOf(host(r)) > 0 && attempt > 0: // or it is the call's own failure
		to = scheme + "://nowhere.test/moved"
	}
	h.Set("Location", to)
}

// came judges an answer by where it came from, and reports whether that is another endpoint than the first.
func (j *httpJudge) came(c *httpCall, b *httpResult, say verdict) (elsewhere bool) {
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

// stays judges where the attempts of a call went.
func (j *httpJudge) stays(c *httpCall, say verdict) {
	once := c.sentOnce(j.w.client.firstByte) || !c.reads() && !c.allowed && !j.w.client.declares(c)
	for _, a := range j.hedged.arrivals[c.number] {
		switch {
		case endpointOf(a.host) == 0:
		case once:
			say("3 endpoint", fmt.Sprintf("%s %s may not be hedged, and goes to %s", c.method, c.path, a.host))
		}
	}
}
