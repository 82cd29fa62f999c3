//go:build !hedge_nogrpc

package worlds_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gohedge/hedge"
)

// A grpcWorld is what grpcPlay plays: unary calls and server streams.
type grpcWorld struct {
	past   past
	nonce  bool // a call's second request is refused
	places int  // of a Limiter; 0: there is none
	idle   int  // server streams behind the Limiter of which the client sends no message
	way    grpcWay
	client grpcClient
	calls  []*grpcCall
}

// A grpcWay is what stands between the hedging and the connection.
type grpcWay struct {
	second  bool // WithHedgeConn
	conns   []*grpcConn
	unnamed bool          // only the targets of conns may have hedges
	signs   bool          // an interceptor writes into the request
	token   bool          // an interceptor asks another method for a token, with the context that it is given
	panics  string        // the attempt in which an interceptor panics
	refuses string        // the attempt that an interceptor does not let through
	spelt   bool          // both targets are spelt server:80, and a resolver sends a hedging policy for that of calls that do not go elsewhere
	marks   bool          // interceptors of each connection add its name to the metadata
	timeout time.Duration // of all methods, in the service config of the callers' connections; 0: none
}

// A grpcClient is the Interceptor.
type grpcClient struct {
	share    float64
	options  []func() hedge.GRPCOption
	fewKeys  bool // MaxKeys: calls of other methods can make it forget
	counts   bool // an observer counts
	change   string
	declared bool       // WithMethods("/*")
	answer   codes.Code // an answer from every attempt; OK: none
}

// A grpcCall is what a caller does.
type grpcCall struct {
	number           int
	at               time.Duration
	method           string // that reads by its name, or not
	stream           bool
	deadline, cancel time.Duration
	delay            time.Duration
	allowed          bool
	targets          string // how call options name their targets: "" none, value, pointer, embedded
	finish           bool   // OnFinish
	request          string // "" a proto message, buffer, wrapped
	reply            string // "" an empty proto message, filled before the call, envelope, any, the request
	elsewhere        bool   // it goes to another target, by the same Interceptor
	reuse            bool   // the request is changed when the caller has it back
	reads            string // a stream: "" to its end, one message, header first
	acts             [4]grpcAct
}

// A grpcAct is what the server does with an attempt.
type grpcAct struct {
	wait     time.Duration
	header   bool // is sent before the wait
	code     codes.Code
	pushBack string
	messages int           // of a stream
	stall    time.Duration // between two of them, or before the status of a unary call
	failing  codes.Code    // at the end of a stream
}

func newGRPCWorld(d *draw) *grpcWorld {
	w := &grpcWorld{past: newPast(d)}
	w.past.calls = min(w.past.calls, 40)
	w.way.second = has(d, "way.second", .12)
	newGRPCConns(d, &w.way)
	w.way.signs = has(d, "way.signs", .06)
	if w.way.token = has(d, "way.token", .12); !w.way.token { // or what a call asks for itself is before it in line
		w.places = pick(d, "server.places", .08, 0, 1, 2, 4)
	}
	if w.places > 0 {
		w.idle = pick(d, "server.idle", .4, 0, 1, 4)
	}
	own := len(w.way.conns) == 0                                          // hedges go to the server of their primary
	if (own || w.places == 0) && (own && !w.way.second || !w.way.token) { // or a hedge could come first, while its primary waits in line or for a token
		w.nonce = has(d, "server.nonce", .06)
	}
	w.way.panics = pick(d, "way.panics", .06, "", "0", "1")
	w.way.refuses = pick(d, "way.refuses", .06, "", "0", "1")
	w.way.marks = has(d, "way.marks", .2)
	w.way.spelt = !w.way.second && len(w.way.conns) == 0 && has(d, "way.spelt", .1)
	if w.past.outage == 0 {
		w.way.timeout = pick(d, "way.timeout", .12, 0, 200*ms, time.Second)
	}
	w.client.share = pick(d, "client.share", .2, 1, .1)
	if w.past.outage > 0 {
		w.client.share = .1
	}
	w.client.change = pick(d, "client.change", .08, "", "off", "reset", "import", "update")
	o := &w.client.options
	_, w.client.declared = add(d, o, "methods", .15, func(s string) hedge.GRPCOption { return hedge.WithMethods(s) }, "/*")
	add(d, o, "nonFatal", .08, func(c codes.Code) hedge.GRPCOption { return hedge.WithNonFatalCodes(c) }, codes.NotFound, codes.Unavailable)
	w.client.answer, _ = add(d, o, "answerCode", .08, func(c codes.Code) hedge.GRPCOption { return hedge.WithAnswerCodes(c) }, codes.NotFound)
	add(d, o, "maxHedges", .15, hedge.WithMaxHedges, 1, 3)
	_, w.client.fewKeys = add(d, o, "maxKeys", .1, hedge.WithMaxKeys, 2)
	add(d, o, "initialDelay", .1, hedge.WithInitialDelay, 20*ms)
	add(d, o, "maxDelay", .08, hedge.WithMaxDelay, 20*ms)
	w.client.counts = has(d, "option.counter", .2)
	add(d, o, "observer", .08, observer, "quiet", "panics")
	for i := range pick(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newGRPCCall(d, i))
	}
	return w
}

func newGRPCCall(d *draw, i int) *grpcCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &grpcCall{number: i + 1}
	c.at = pick(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond
	c.stream = has(d, name("stream"), .4)
	c.method = pick(d, name("rpc"), .25, "GetItem", "ListItems", "UpdateItem", "GetOrCreateItem", "Query")
	c.deadline, c.cancel = newTimes(d, name)
	c.delay = pick(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.allowed = has(d, name("allowed"), .1)
	c.targets = pick(d, name("targets"), .4, "", "value", "pointer", "embedded")
	c.finish = has(d, name("finish"), .15)
	c.request = pick(d, name("request"), .12, "", "buffer", "wrapped")
	replies := []string{"filled", "envelope", "any"}
	if !c.stream && c.request == "" {
		replies = append(replies, "request")
	}
	c.reply = pick(d, name("reply"), .2, "", replies...)
	c.elsewhere = has(d, name("elsewhere"), .12)
	c.reuse = c.reply != "request" && has(d, name("reuse"), .4)
	if c.stream {
		c.reads = pick(d, name("reads"), .3, "", "one", "header")
	}
	for n := range c.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .3
		if n == 0 {
			odd = .75
		}
		a := &c.acts[n]
		a.wait = pick(d, try+"wait", odd, 0, waits...)
		if a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.header = has(d, try+"header", .1)
		a.code = pick(d, try+"code", odd/2, codes.OK, codes.Canceled, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.NotFound,
			codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.Unimplemented, codes.Internal, codes.Unavailable,
			codes.DataLoss, codes.Unauthenticated)
		if a.code != codes.OK {
			a.pushBack = pick(d, try+"pushBack", .15, "", "0", "1000", "-1")
		}
		a.messages = pick(d, try+"messages", .3, 2, 0, 1, 5)
		a.stall = pick(d, try+"stall", .15, 0, 20*ms, 300*ms, 5*time.Second, forever)
		a.failing = pick(d, try+"failing", .1, codes.OK, codes.Unavailable, codes.NotFound)
	}
	return c
}

// mayRepeat reports whether the call may be sent twice: its name says that it only reads, or the user says so.
func (w *grpcWorld) mayRepeat(c *grpcCall) bool {
	return w.client.declared || c.allowed || c.method == "GetItem" || c.method == "ListItems"
}
