package worlds_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge"
)

// A httpWorld is what httpPlay plays.
type httpWorld struct {
	http2  bool
	past   past
	server httpServer
	way    httpWay

	elsewhere httpElsewhere
	client    httpClient
	calls     []*httpCall
}

// A httpServer has a state.
type httpServer struct {
	nonce    bool // a call's second request is refused
	connAuth bool // a connection must have carried an earlier request
	places   int  // of a Limiter; 0: there is none
	releases bool // handlers give their places back before they wait
	tls      bool // and ALPN
	unmarked bool // attempts are told by the order in which they arrive, not by a header
}

// A httpWay is what stands between the client and the server.
type httpWay struct {
	maxConns, bulkhead  int
	registered          bool // the base sends through another RoundTripper, by RegisterProtocol
	wrapped             bool // the base is no *http.Transport to look at
	rewrite, cache      bool // requests go to another host, or are answered from memory
	asksValue, asksDone bool // it asks the context for a value when the answer is there, or whether it is done in each Read
	second              bool // WithHedgeTransport
	layers              int  // of hedging, one over another
	replicas            bool // WithReplicas
	noKeepAlives        bool
	dialling            time.Duration // what a connection takes
	panics              string        // where it panics, and in which attempt
	headerTimeout       time.Duration
	upgraded            bool          // the first half of the past is over HTTP/1.1, and the rest over HTTP/2
	lags                time.Duration // after which the primary of a call is read, also if the call is over; 0: at once
}

// A httpClient is the hedged client.
type httpClient struct {
	options   []func() hedge.HTTPOption
	counts    bool // an observer counts
	maxKeys   int
	maxHedges int     // 0: the usual number
	share     float64 // of the budget
	linger    time.Duration
	firstByte bool
	resume    bool
	answer    int      // a status that is an answer from every attempt
	judges    bool     // a FailureFunc or the like says what a failure is
	routed    bool     // some calls have a key of their own
	failure   int      // the one status that is a failure; 0: the usual ones are
	routes    []string // patterns that declare what they match safe to repeat
	warm      int      // Warm beside the calls
	change    string   // what is done to the client beside the calls
}

// A httpCall is what a caller does.
type httpCall struct {
	number       int // from 1
	at           time.Duration
	host         int
	method, path string
	body         string // of the request: "", bytes, reader, pipe
	bodyAt       time.Duration
	getBody      bool
	header       string // "Name: value"
	tells        string // what may not reach another host
	deadline     time.Duration
	cancel       time.Duration // -1: never
	delay        time.Duration // WithDelay
	allowed      bool          // AllowHedging
	traced       bool          // the caller has httptrace hooks
	read, reuse  string        // how the body is read, and what is done with the request then
	acts         [4]httpAct    // of the server, one for each attempt
}

// cut reports whether the body of an attempt ends in the middle.
func (c *httpCall) cut() bool {
	for _, a := range c.acts {
		if a.cut {
			return true
		}
	}
	return false
}

// whole reports whether the caller reads a body to its end.
func (c *httpCall) whole() bool { return c.read != "half" && c.read != "never" }

// A httpAct is what the server does with an attempt.
type httpAct struct {
	wait       time.Duration
	hint       int // a status 1xx
	hintAt     time.Duration
	status     int
	retryAfter string
	leaves     bool   // the server ends the connection after the answer: over HTTP/2 by GOAWAY
	reset      bool   // the connection is broken off instead of an answer
	body       string // "", empty, chunked, large, gzip
	stall      time.Duration
	cut        bool // the body ends in the middle
	trailer    bool
}

// reads reports whether the method is safe by RFC 9110.
func (c *httpCall) reads() bool { return c.method != "POST" && c.method != "PUT" }

// sentOnce reports whether rule R4 forbids to repeat the request, whatever its method and whatever is declared.
func (c *httpCall) sentOnce(firstByte bool) bool {
	name, value, _ := strings.Cut(strings.ToLower(c.header), ": ")
	switch name {
	case "upgrade", "expect", "x-ca-nonce":
		return true
	case "authorization":
		return strings.HasPrefix(value, "ntlm") || strings.HasPrefix(value, "negotiate") || strings.Contains(value, "nonce=")
	case "signature-input":
		return strings.Contains(value, "nonce=")
	case "accept":
		return strings.Contains(value, "text/event-stream") && !firstByte
	}
	return false
}

func newHTTPWorld(d *draw, http2 bool) *httpWorld {
	w := &httpWorld{http2: http2}
	w.past = newPast(d)
	w.server.nonce = has(d, "server.nonce", .06)
	w.server.connAuth = has(d, "server.connAuth", .06)
	w.server.places = pick(d, "server.places", .08, 0, 1, 2, 4)
	w.server.releases = w.server.places > 0 && has(d, "server.releases", .3)
	w.server.unmarked = has(d, "server.unmarked", .1)
	w.server.tls = has(d, "server.tls", .12)
	w.way = newHTTPWay(d)
	w.way.upgraded = http2 && w.way.wrapped && has(d, "way.upgraded", .2)
	if w.way.layers = 1; !w.server.unmarked { // attempts have the same numbers in all layers
		w.way.layers = pick(d, "way.layers", .06, 1, 2)
	}
	if w.way.second || w.way.wrapped || w.way.layers > 1 {
		w.way.replicas = false // WithReplicas would be an error
	}
	w.client = newHTTPClient(d, w.past)
	w.elsewhere = newHTTPElsewhere(d, w)
	for i := range pick(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newHTTPCall(d, w, i))
	}
	return w
}

func newHTTPWay(d *draw) (y httpWay) {
	y.maxConns = pick(d, "way.maxConns", .2, 0, 1, 2, 3)
	y.headerTimeout = pick(d, "way.headerTimeout", .05, 0, 500*ms)
	y.noKeepAlives = has(d, "way.noKeepAlives", .05)
	y.second = has(d, "way.second", .08)
	y.replicas = has(d, "way.replicas", .06)
	y.registered = has(d, "way.registered", .04)
	y.dialling = pick(d, "way.dialling", .06, 0, 20*ms, 300*ms, 3*time.Second)
	if y.wrapped = has(d, "way.wrapped", .4); !y.wrapped {
		return y
	}
	y.bulkhead = pick(d, "way.bulkhead", .2, 0, 1, 2, 4)
	y.rewrite = has(d, "way.rewrite", .1)
	y.cache = has(d, "way.cache", .1)
	y.asksValue = has(d, "way.asksValue", .2)
	y.asksDone = has(d, "way.asksDone", .2)
	if y.maxConns == 0 { // else a hedge may get the last connection, for as long as it takes, before the primary asks for one
		y.lags = pick(d, "way.lags", .2, 0, 20*ms, 60*ms, 400*ms)
	}
	y.panics = pick(d, "way.panics", .3, "", "warm", "roundtrip0", "roundtrip1", "read1", "close0", "close1")
	return y
}

var policies = map[string]hedge.Policy{"hedgeable": {Hedgeable: true}, "off": {Off: true}, "firstByte": {FirstByte: true}, "delay": {Delay: 20 * ms}}

// leave reports whether the server ends connections by itself.
func (w *httpWorld) leave() bool {
	return slices.ContainsFunc(w.calls, func(c *httpCall) bool {
		return slices.ContainsFunc(c.acts[:], func(a httpAct) bool { return a.leaves })
	})
}

// statuses that the server says.
var statuses = []int{201, 204, 206, 301, 304, 400, 401, 403, 404, 407, 409, 412, 429, 500, 501, 502, 503, 504}

func newHTTPClient(d *draw, past past) httpClient {
	c := httpClient{linger: time.Second}
	c.share = pick(d, "client.share", .2, 1, .1)
	if past.outage > 0 {
		c.share = .1
	}
	c.warm = pick(d, "client.warm", .05, 0, 2, 4)
	c.change = pick(d, "client.change", .08, "", "off", "reset", "import", "update", "closeIdle")
	_, c.firstByte = add(d, &c.options, "firstByte", .06, onTrue(hedge.WithFirstByte), true)
	resumes := .08
	if past.large {
		resumes = .6
	}
	_, c.resume = add(d, &c.options, "resume", resumes, onTrue(hedge.WithResume), true)
	add(d, &c.options, "audit", .03, onTrue(hedge.WithAudit), true)
	if !c.firstByte { // beside WithFirstByte, WithLinger is an error
		if v, ok := add(d, &c.options, "linger", .12, hedge.WithLinger, 0, 50*ms); ok {
			c.linger = v
		}
	}
	c.maxHedges, _ = add(d, &c.options, "maxHedges", .12, hedge.WithMaxHedges, 1, 3)
	c.maxKeys, _ = add(d, &c.options, "maxKeys", .1, hedge.WithMaxKeys, 2)
	add(d, &c.options, "maxDelay", .05, hedge.WithMaxDelay, 20*ms)
	add(d, &c.options, "initialDelay", .1, hedge.WithInitialDelay, 20*ms)
	add(d, &c.options, "percentile", .05, hedge.WithPercentile, .5)
	add(d, &c.options, "maxReplayBytes", .05, hedge.WithMaxReplayBytes, 0, 4)
	add(d, &c.options, "perSecond", .03, hedge.WithMaxHedgesPerSecond, 1)
	add(d, &c.options, "oneKey", .04, onTrue(func() hedge.HTTPOrGRPCOption { return hedge.WithKeyFunc(oneKey) }), true)
	add(d, &c.options, "emptyKey", .1, onTrue(func() hedge.HTTPOrGRPCOption { return hedge.WithKeyFunc(emptyKey) }), true)
	if _, c.judges = add(d, &c.options, "failureFunc", .06, failureFunc, "none", "all", "panics"); !c.judges {
		c.failure, _ = add(d, &c.options, "failureStatus", .06, func(n int) hedge.HTTPOption { return hedge.WithFailureStatus(n) }, 404, 503)
		c.answer, _ = add(d, &c.options, "answerStatus", .06, func(n int) hedge.HTTPOption { return hedge.WithAnswerStatus(n) }, 404)
	}
	c.counts = has(d, "option.counter", .2)
	add(d, &c.options, "observer", .08, observer, "quiet", "panics")
	everything := func() hedge.HTTPOption { return hedge.WithHedgeable(func(*http.Request) bool { return true }) }
	if _, ok := add(d, &c.options, "hedgeable", .04, onTrue(everything), true); ok {
		c.routes = append(c.routes, "/")
	}
	pattern := pick(d, "option.route", .15, "", "POST /items/", "/items/", "POST /items/{id}", "POST /items", "GET /items/")
	if c.routed = pattern != ""; c.routed {
		p := policies[pick(d, "option.route.policy", .6, "hedgeable", "off", "firstByte", "delay")]
		c.options = append(c.options, func() hedge.HTTPOption { return hedge.WithRoute(pattern, p) })
		c.firstByte = c.firstByte || p.FirstByte
		if p.Hedgeable {
			c.routes = append(c.routes, pattern)
		}
	}
	return c
}

func oneKey(context.Context, string, string) string { return "all" }

func emptyKey(context.Context, string, string) string { return "" }

func failureFunc(what string) hedge.HTTPOption {
	return hedge.WithFailureFunc(func(*http.Response) bool {
		if what == "panics" {
			panic("FailureFunc")
		}
		return what == "all"
	})
}

func newHTTPCall(d *draw, w *httpWorld, i int) *httpCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &httpCall{number: i + 1}
	c.at = pick(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond // no two things happen at the same instant
	c.method = pick(d, name("method"), .35, "GET", "HEAD", "QUERY", "POST", "PUT", "OPTIONS")
	c.path = pick(d, name("path"), .4, "/items/1", "/items", "/items/", "/x/../items/1", "//items/1", "/other")
	if c.method != "GET" && c.method != "HEAD" {
		c.body = pick(d, name("body"), .7, "", "bytes", "reader", "pipe")
		c.getBody = c.body == "bytes" || c.body != "" && has(d, name("getBody"), .3)
		if c.body == "pipe" {
			c.bodyAt = pick(d, name("bodyAt"), .8, 0, 20*ms, 400*ms, forever)
		}
	}
	c.header = pick(d, name("header"), .12, "", "Accept: text/event-stream", "Accept: Text/Event-Stream", "accept: text/event-stream", "Expect: 100-continue",
		"Upgrade: x", "upgrade: x", "Authorization: NTLM x", "Authorization: negotiate x", "Authorization: Bearer x",
		"Authorization: Hawk nonce=n", "X-Ca-Nonce: n", "Signature-Input: s=();nonce=n", "Idempotency-Key: k", "Range: bytes=0-3")
	if w.past.large && c.header == "" {
		c.header = pick(d, name("range"), .3, "", "Range: bytes=0-199999", "Range: bytes=1000-150999", "Range: bytes=50000-", "Range: bytes=199990-", "Range: bytes=1-300000",
			"Range: bytes=-100000", "Range: bytes=0-70000,100000-180000", "Range: items=1-2")
	}
	if w.elsewhere.endpoints > 0 && c.header == "" {
		c.tells = pick(d, name("tells"), .5, "", tells...)
	}
	c.deadline, c.cancel = newTimes(d, name)
	c.delay = pick(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.allowed = has(d, name("allowed"), .04)
	c.traced = has(d, name("traced"), .2)
	c.read = pick(d, name("read"), .25, "", "slowly", "half", "never", "closedLate")
	c.reuse = pick(d, name("reuse"), .6, "", "header", "body", "noBody")
	for n := range c.acts {
		c.acts[n] = newHTTPAct(d, name(fmt.Sprintf("try%d.", n)), n == 0)
		if c.acts[n].wait > 0 {
			c.acts[n].wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		if w.past.large {
			c.acts[n].body = "large"
			c.acts[n].cut = c.acts[n].cut || has(d, name(fmt.Sprintf("try%d.largeCut", n)), .15)
		}
	}
	return c
}

func newHTTPAct(d *draw, name string, primary bool) httpAct {
	odd, status := .3, .15
	if primary {
		odd, status = .75, .35
	}
	a := httpAct{}
	a.wait = pick(d, name+"wait", odd, 0, waits...)
	if a.hint = pick(d, name+"hint", .06, 0, 102, 103); a.hint > 0 {
		a.hintAt = pick(d, name+"hintAt", .5, 0, 10*ms, 100*ms)
	}
	a.status = pick(d, name+"status", status, 200, statuses...)
	if a.status >= 429 {
		a.retryAfter = pick(d, name+"retryAfter", .3, "", "0", "1", "60", "never")
	}
	a.leaves = has(d, name+"leaves", .06)
	a.reset = has(d, name+"reset", .08)
	a.body = pick(d, name+"body", .3, "", "empty", "chunked", "large", "gzip")
	a.cut = a.body != "empty" && has(d, name+"cut", .06)
	if a.body != "empty" { // a handler that goes on after all is sent would keep the connection from others
		a.stall = pick(d, name+"stall", .2, 0, 20*ms, 300*ms, 5*time.Second, forever)
		a.trailer = has(d, name+"trailer", .06)
	}
	return a
}
