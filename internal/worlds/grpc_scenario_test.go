//go:build !hedge_nogrpc

package worlds_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gohedge/hedge"
)

// A grpcScenario has unary calls and server streams.
type grpcScenario struct {
	past   warmUp
	nonce  bool // a call's second request is refused
	places int  // of a Limiter; 0: there is none
	idle   int  // server streams behind the Limiter of which the client sends no message
	way    grpcNetwork
	client grpcClient
	calls  []*grpcCall
}

// A grpcNetwork has the layers between the hedging and the connection.
type grpcNetwork struct {
	second  bool // WithHedgeConn
	conns   []*grpcConn
	unnamed bool          // only the targets of conns may have hedges
	signs   bool          // an interceptor writes into the request
	token   bool          // an interceptor asks another method for a token, with the context that it is given
	panics  string        // the attempt in which an interceptor panics
	refuses string        // the attempt that an interceptor does not let through
	spelt   bool          // both targets are spelt server:80, and a resolver sends a hedging policy for that of calls that do not go elsewhere
	outlier bool          // the caller's connection has several servers, and outlier detection below hedge_elsewhere
	marks   bool          // interceptors of each connection add its name to the metadata
	timeout time.Duration // of all methods, in the service config of the callers' connections; 0: none
}

// A grpcClient has the settings of the Interceptor.
type grpcClient struct {
	share    float64
	options  []func() hedge.GRPCOption
	fewKeys  bool // MaxKeys: calls of other methods can make it forget
	counts   bool // an observer counts
	change   string
	declared bool       // WithMethods("/*")
	answer   codes.Code // an answer from every attempt; OK: none
}

// A grpcCall has the steps of a caller.
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
	acts             [4]grpcStep
}

// A grpcStep is the behaviour of the server for one attempt.
type grpcStep struct {
	wait     time.Duration
	header   bool // is sent before the wait
	code     codes.Code
	pushBack string
	messages int           // of a stream
	stall    time.Duration // between two of them, or before the status of a unary call
	failing  codes.Code    // at the end of a stream
}

func newGRPCScenario(d *generator) *grpcScenario {
	w := &grpcScenario{past: newWarmUp(d)}
	w.past.calls = min(w.past.calls, 40)
	w.way.second = drawFlag(d, "way.second", .12)
	newGRPCConns(d, &w.way)
	w.way.signs = drawFlag(d, "way.signs", .06)
	if w.way.token = drawFlag(d, "way.token", .12); !w.way.token { // otherwise a token request of the call delays it
		w.places = drawPart(d, "server.places", .08, 0, 1, 2, 4)
	}
	if w.places > 0 {
		w.idle = drawPart(d, "server.idle", .4, 0, 1, 4)
	}
	own := len(w.way.conns) == 0                                          // hedges go to the server of their primary
	if (own || w.places == 0) && (own && !w.way.second || !w.way.token) { // or a hedge could come first, while its primary waits in line or for a token
		w.nonce = drawFlag(d, "server.nonce", .06)
	}
	w.way.panics = drawPart(d, "way.panics", .06, "", "0", "1")
	w.way.refuses = drawPart(d, "way.refuses", .06, "", "0", "1")
	w.way.marks = drawFlag(d, "way.marks", .2)
	w.way.spelt = !w.way.second && len(w.way.conns) == 0 && drawFlag(d, "way.spelt", .1)
	newOutlierDetection(d, w)
	if w.past.outage == 0 {
		w.way.timeout = drawPart(d, "way.timeout", .12, 0, 200*ms, time.Second)
	}
	w.client.share = drawPart(d, "client.share", .2, 1, .1)
	if w.past.outage > 0 {
		w.client.share = .1
	}
	w.client.change = drawPart(d, "client.change", .08, "", "off", "reset", "import", "update")
	o := &w.client.options
	_, w.client.declared = drawOption(d, o, "methods", .15, func(s string) hedge.GRPCOption { return hedge.WithMethods(s) }, "/*")
	drawOption(d, o, "nonFatal", .08, func(c codes.Code) hedge.GRPCOption { return hedge.WithNonFatalCodes(c) }, codes.NotFound, codes.Unavailable)
	w.client.answer, _ = drawOption(d, o, "answerCode", .08, func(c codes.Code) hedge.GRPCOption { return hedge.WithAnswerCodes(c) }, codes.NotFound)
	drawOption(d, o, "maxHedges", .15, hedge.WithMaxHedges, 1, 3)
	_, w.client.fewKeys = drawOption(d, o, "maxKeys", .1, hedge.WithMaxKeys, 2)
	drawOption(d, o, "initialDelay", .1, hedge.WithInitialDelay, 20*ms)
	drawOption(d, o, "maxDelay", .08, hedge.WithMaxDelay, 20*ms)
	w.client.counts = drawFlag(d, "option.counter", .2)
	drawOption(d, o, "observer", .08, newObserver, "quiet", "panics")
	for i := range drawPart(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newGRPCCall(d, i))
	}
	return w
}

func newGRPCCall(d *generator, i int) *grpcCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &grpcCall{number: i + 1}
	c.at = drawPart(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond
	c.stream = drawFlag(d, name("stream"), .4)
	c.method = drawPart(d, name("rpc"), .25, "GetItem", "ListItems", "UpdateItem", "GetOrCreateItem", "Query")
	c.deadline, c.cancel = drawCallerTimes(d, name)
	c.delay = drawPart(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.allowed = drawFlag(d, name("allowed"), .1)
	c.targets = drawPart(d, name("targets"), .4, "", "value", "pointer", "embedded")
	c.finish = drawFlag(d, name("finish"), .15)
	c.request = drawPart(d, name("request"), .12, "", "buffer", "wrapped")
	replies := []string{"filled", "envelope", "any"}
	if !c.stream && c.request == "" {
		replies = append(replies, "request")
	}
	c.reply = drawPart(d, name("reply"), .2, "", replies...)
	c.elsewhere = drawFlag(d, name("elsewhere"), .12)
	c.reuse = c.reply != "request" && drawFlag(d, name("reuse"), .4)
	if c.stream {
		c.reads = drawPart(d, name("reads"), .3, "", "one", "header")
	}
	for n := range c.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .3
		if n == 0 {
			odd = .75
		}
		a := &c.acts[n]
		a.wait = drawPart(d, try+"wait", odd, 0, extraLatencies...)
		if a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.header = drawFlag(d, try+"header", .1)
		a.code = drawPart(d, try+"code", odd/2, codes.OK, codes.Canceled, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.NotFound,
			codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.Unimplemented, codes.Internal, codes.Unavailable,
			codes.DataLoss, codes.Unauthenticated)
		if a.code != codes.OK {
			a.pushBack = drawPart(d, try+"pushBack", .15, "", "0", "1000", "-1")
		}
		a.messages = drawPart(d, try+"messages", .3, 2, 0, 1, 5)
		a.stall = drawPart(d, try+"stall", .15, 0, 20*ms, 300*ms, 5*time.Second, forever)
		a.failing = drawPart(d, try+"failing", .1, codes.OK, codes.Unavailable, codes.NotFound)
	}
	return c
}

// mayRepeat reports whether the call may be sent twice: by its name, or by a setting of the user.
func (w *grpcScenario) mayRepeat(c *grpcCall) bool {
	return w.client.declared || c.allowed || c.method == "GetItem" || c.method == "ListItems"
}
