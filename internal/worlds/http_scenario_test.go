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

// A httpScenario has calls over HTTP.
type httpScenario struct {
	http2  bool
	past   warmUp
	server httpServer
	way    httpNetwork

	elsewhere httpEndpoints
	client    httpClient
	calls     []*httpCall
}

// A httpServer has the state of the server.
type httpServer struct {
	nonce    bool // a call's second request is refused
	connAuth bool // a connection must have carried an earlier request
	places   int  // of a Limiter; 0: there is none
	releases bool // handlers give their places back before they wait
	tls      bool // and ALPN
	unmarked bool // attempts are told by the order in which they arrive, not by a header
}

// A httpNetwork has the layers and connections between the client and the server.
type httpNetwork struct {
	maxConns, bulkhead  int
	registered          bool // the base sends through another RoundTripper, by RegisterProtocol
	wrapped             bool // the base is no *http.Transport to look at
	rewrite, cache      bool // requests go to another host, or are answered from memory
	asksValue, asksDone bool // it asks the context for a value when the answer is there, or whether it is done in each Read
	second              bool // WithHedgeTransport
	layers              int  // of hedging, one over another
	replicas            bool // WithReplicas
	noKeepAlives        bool
	dialling            time.Duration // time to open a connection
	panics              string        // where it panics, and in which attempt
	headerTimeout       time.Duration
	upgraded            bool          // the first half of the past is over HTTP/1.1, and the rest over HTTP/2
	lags                time.Duration // after which the primary of a call is read, also if the call is over; 0: at once
}

// A httpClient has the settings of the hedged client.
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
	judges    bool     // a function of the user classifies failures
	routed    bool     // some calls have a key of their own
	failure   int      // the one status that is a failure; 0: the usual ones are
	routes    []string // patterns of requests that are safe to repeat
	warm      int      // Warm beside the calls
	change    string   // change of the client during the calls
}

// A httpCall has the steps of a caller.
type httpCall struct {
	number       int // from 1
	at           time.Duration
	host         int
	method, path string
	body         string // of the request: "", bytes, reader, pipe
	bodyAt       time.Duration
	getBody      bool
	header       string // "Name: value"
	tells        string // a part of the request that must not reach another host
	deadline     time.Duration
	cancel       time.Duration // -1: never
	delay        time.Duration // WithDelay
	allowed      bool          // AllowHedging
	traced       bool          // the caller has httptrace hooks
	read, reuse  string        // how the body is read, and how the request is reused after that
	acts         [4]httpStep   // of the server, one for each attempt
}

// hasTruncatedBody reports whether the body of an attempt ends early.
func (c *httpCall) hasTruncatedBody() bool {
	for _, a := range c.acts {
		if a.cut {
			return true
		}
	}
	return false
}

// readsWholeBody reports whether the caller reads a body to its end.
func (c *httpCall) readsWholeBody() bool { return c.read != "half" && c.read != "never" }

// A httpStep is the behaviour of the server for one attempt.
type httpStep struct {
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

// hasSafeMethod reports whether the method is safe by RFC 9110.
func (c *httpCall) hasSafeMethod() bool { return c.method != "POST" && c.method != "PUT" }

// isSingleUse reports whether rule R4 forbids a repetition of the request for any method and any declaration.
func (c *httpCall) isSingleUse(firstByte bool) bool {
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

func newHTTPScenario(d *generator, http2 bool) *httpScenario {
	w := &httpScenario{http2: http2}
	w.past = newWarmUp(d)
	w.server.nonce = drawFlag(d, "server.nonce", .06)
	w.server.connAuth = drawFlag(d, "server.connAuth", .06)
	w.server.places = drawPart(d, "server.places", .08, 0, 1, 2, 4)
	w.server.releases = w.server.places > 0 && drawFlag(d, "server.releases", .3)
	w.server.unmarked = drawFlag(d, "server.unmarked", .1)
	w.server.tls = drawFlag(d, "server.tls", .12)
	w.way = newHTTPNetwork(d)
	w.way.upgraded = http2 && w.way.wrapped && drawFlag(d, "way.upgraded", .2)
	if w.way.layers = 1; !w.server.unmarked { // attempts have the same numbers in all layers
		w.way.layers = drawPart(d, "way.layers", .06, 1, 2)
	}
	if w.way.second || w.way.wrapped || w.way.layers > 1 {
		w.way.replicas = false // WithReplicas would be an error
	}
	w.client = newHTTPClient(d, w.past)
	w.elsewhere = newHTTPElsewhere(d, w)
	for i := range drawPart(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newHTTPCall(d, w, i))
	}
	return w
}

func newHTTPNetwork(d *generator) (y httpNetwork) {
	y.maxConns = drawPart(d, "way.maxConns", .2, 0, 1, 2, 3)
	y.headerTimeout = drawPart(d, "way.headerTimeout", .05, 0, 500*ms)
	y.noKeepAlives = drawFlag(d, "way.noKeepAlives", .05)
	y.second = drawFlag(d, "way.second", .08)
	y.replicas = drawFlag(d, "way.replicas", .06)
	y.registered = drawFlag(d, "way.registered", .04)
	y.dialling = drawPart(d, "way.dialling", .06, 0, 20*ms, 300*ms, 3*time.Second)
	if y.wrapped = drawFlag(d, "way.wrapped", .4); !y.wrapped {
		return y
	}
	y.bulkhead = drawPart(d, "way.bulkhead", .2, 0, 1, 2, 4)
	y.rewrite = drawFlag(d, "way.rewrite", .1)
	y.cache = drawFlag(d, "way.cache", .1)
	y.asksValue = drawFlag(d, "way.asksValue", .2)
	y.asksDone = drawFlag(d, "way.asksDone", .2)
	if y.maxConns == 0 { // else a hedge may get the last connection, for as long as it takes, before the primary asks for one
		y.lags = drawPart(d, "way.lags", .2, 0, 20*ms, 60*ms, 400*ms)
	}
	y.panics = drawPart(d, "way.panics", .3, "", "warm", "roundtrip0", "roundtrip1", "read1", "close0", "close1")
	return y
}

var policies = map[string]hedge.Policy{"hedgeable": {Hedgeable: true}, "off": {Off: true}, "firstByte": {FirstByte: true}, "delay": {Delay: 20 * ms}}

// closesConnections reports whether the server closes connections itself.
func (w *httpScenario) closesConnections() bool {
	return slices.ContainsFunc(w.calls, func(c *httpCall) bool {
		return slices.ContainsFunc(c.acts[:], func(a httpStep) bool { return a.leaves })
	})
}

// statuses are the statuses of responses.
var statuses = []int{201, 204, 206, 301, 304, 400, 401, 403, 404, 407, 409, 412, 429, 500, 501, 502, 503, 504}

func newHTTPClient(d *generator, past warmUp) httpClient {
	c := httpClient{linger: time.Second}
	c.share = drawPart(d, "client.share", .2, 1, .1)
	if past.outage > 0 {
		c.share = .1
	}
	c.warm = drawPart(d, "client.warm", .05, 0, 2, 4)
	c.change = drawPart(d, "client.change", .08, "", "off", "reset", "import", "update", "closeIdle")
	_, c.firstByte = drawOption(d, &c.options, "firstByte", .06, withoutArgument(hedge.WithFirstByte), true)
	resumes := .08
	if past.large {
		resumes = .6
	}
	_, c.resume = drawOption(d, &c.options, "resume", resumes, withoutArgument(hedge.WithResume), true)
	drawOption(d, &c.options, "audit", .03, withoutArgument(hedge.WithAudit), true)
	if !c.firstByte { // beside WithFirstByte, WithLinger is an error
		if v, ok := drawOption(d, &c.options, "linger", .12, hedge.WithLinger, 0, 50*ms); ok {
			c.linger = v
		}
	}
	c.maxHedges, _ = drawOption(d, &c.options, "maxHedges", .12, hedge.WithMaxHedges, 1, 3)
	c.maxKeys, _ = drawOption(d, &c.options, "maxKeys", .1, hedge.WithMaxKeys, 2)
	drawOption(d, &c.options, "maxDelay", .05, hedge.WithMaxDelay, 20*ms)
	drawOption(d, &c.options, "initialDelay", .1, hedge.WithInitialDelay, 20*ms)
	drawOption(d, &c.options, "percentile", .05, hedge.WithPercentile, .5)
	drawOption(d, &c.options, "maxReplayBytes", .05, hedge.WithMaxReplayBytes, 0, 4)
	drawOption(d, &c.options, "perSecond", .03, hedge.WithMaxHedgesPerSecond, 1)
	drawOption(d, &c.options, "oneKey", .04, withoutArgument(func() hedge.HTTPOrGRPCOption { return hedge.WithKeyFunc(oneKey) }), true)
	drawOption(d, &c.options, "emptyKey", .1, withoutArgument(func() hedge.HTTPOrGRPCOption { return hedge.WithKeyFunc(emptyKey) }), true)
	if _, c.judges = drawOption(d, &c.options, "failureFunc", .06, failureFunc, "none", "all", "panics"); !c.judges {
		c.failure, _ = drawOption(d, &c.options, "failureStatus", .06, func(n int) hedge.HTTPOption { return hedge.WithFailureStatus(n) }, 404, 503)
		c.answer, _ = drawOption(d, &c.options, "answerStatus", .06, func(n int) hedge.HTTPOption { return hedge.WithAnswerStatus(n) }, 404)
	}
	c.counts = drawFlag(d, "option.counter", .2)
	drawOption(d, &c.options, "observer", .08, newObserver, "quiet", "panics")
	everything := func() hedge.HTTPOption { return hedge.WithHedgeable(func(*http.Request) bool { return true }) }
	if _, ok := drawOption(d, &c.options, "hedgeable", .04, withoutArgument(everything), true); ok {
		c.routes = append(c.routes, "/")
	}
	pattern := drawPart(d, "option.route", .15, "", "POST /items/", "/items/", "POST /items/{id}", "POST /items", "GET /items/")
	if c.routed = pattern != ""; c.routed {
		p := policies[drawPart(d, "option.route.policy", .6, "hedgeable", "off", "firstByte", "delay")]
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

func newHTTPCall(d *generator, w *httpScenario, i int) *httpCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &httpCall{number: i + 1}
	c.at = drawPart(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond // no two things happen at the same instant
	c.method = drawPart(d, name("method"), .35, "GET", "HEAD", "QUERY", "POST", "PUT", "OPTIONS")
	c.path = drawPart(d, name("path"), .4, "/items/1", "/items", "/items/", "/x/../items/1", "//items/1", "/other")
	if c.method != "GET" && c.method != "HEAD" {
		c.body = drawPart(d, name("body"), .7, "", "bytes", "reader", "pipe")
		c.getBody = c.body == "bytes" || c.body != "" && drawFlag(d, name("getBody"), .3)
		if c.body == "pipe" {
			c.bodyAt = drawPart(d, name("bodyAt"), .8, 0, 20*ms, 400*ms, forever)
		}
	}
	c.header = drawPart(d, name("header"), .12, "", "Accept: text/event-stream", "Accept: Text/Event-Stream", "accept: text/event-stream", "Expect: 100-continue",
		"Upgrade: x", "upgrade: x", "Authorization: NTLM x", "Authorization: negotiate x", "Authorization: Bearer x",
		"Authorization: Hawk nonce=n", "X-Ca-Nonce: n", "Signature-Input: s=();nonce=n", "Idempotency-Key: k", "Range: bytes=0-3")
	if w.past.large && c.header == "" {
		c.header = drawPart(d, name("range"), .3, "", "Range: bytes=0-199999", "Range: bytes=1000-150999", "Range: bytes=50000-", "Range: bytes=199990-", "Range: bytes=1-300000",
			"Range: bytes=-100000", "Range: bytes=0-70000,100000-180000", "Range: items=1-2")
	}
	if w.elsewhere.endpoints > 0 && c.header == "" {
		c.tells = drawPart(d, name("tells"), .5, "", confidential...)
	}
	c.deadline, c.cancel = drawCallerTimes(d, name)
	c.delay = drawPart(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.allowed = drawFlag(d, name("allowed"), .04)
	c.traced = drawFlag(d, name("traced"), .2)
	c.read = drawPart(d, name("read"), .25, "", "slowly", "half", "never", "closedLate")
	c.reuse = drawPart(d, name("reuse"), .6, "", "header", "body", "noBody")
	for n := range c.acts {
		c.acts[n] = newHTTPStep(d, name(fmt.Sprintf("try%d.", n)), n == 0)
		if c.acts[n].wait > 0 {
			c.acts[n].wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		if w.past.large {
			c.acts[n].body = "large"
			c.acts[n].cut = c.acts[n].cut || drawFlag(d, name(fmt.Sprintf("try%d.largeCut", n)), .15)
		}
	}
	return c
}

func newHTTPStep(d *generator, name string, primary bool) httpStep {
	odd, status := .3, .15
	if primary {
		odd, status = .75, .35
	}
	a := httpStep{}
	a.wait = drawPart(d, name+"wait", odd, 0, extraLatencies...)
	if a.hint = drawPart(d, name+"hint", .06, 0, 102, 103); a.hint > 0 {
		a.hintAt = drawPart(d, name+"hintAt", .5, 0, 10*ms, 100*ms)
	}
	a.status = drawPart(d, name+"status", status, 200, statuses...)
	if a.status >= 429 {
		a.retryAfter = drawPart(d, name+"retryAfter", .3, "", "0", "1", "60", "never")
	}
	a.leaves = drawFlag(d, name+"leaves", .06)
	a.reset = drawFlag(d, name+"reset", .08)
	a.body = drawPart(d, name+"body", .3, "", "empty", "chunked", "large", "gzip")
	a.cut = a.body != "empty" && drawFlag(d, name+"cut", .06)
	if a.body != "empty" { // a handler that goes on after all is sent would keep the connection from others
		a.stall = drawPart(d, name+"stall", .2, 0, 20*ms, 300*ms, 5*time.Second, forever)
		a.trailer = drawFlag(d, name+"trailer", .06)
	}
	return a
}
