package hedge

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/elsewhere"
	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/race"
)

// Only the files whose names begin with interceptor import grpc, and a test keeps
// it so. A program that uses only HTTP carries grpc all the same, because it is in
// the same package.

// answer reports whether a call that ended with err shows how long an answer takes.
func answer(err error) bool { return err == nil || deterministic(status.Code(err)) }

// deterministic reports whether every attempt of a call would end with c.
func deterministic(c codes.Code) bool {
	switch c {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

// An Interceptor hedges gRPC calls that are slower than usual for their target
// and method. Its [Interceptor.Unary] and [Interceptor.Stream] share what is
// learned, the settings, the counters and the budgets. It is safe for concurrent use,
// and by any number of connections. The zero Interceptor is not usable.
//
// Importing this package registers the load balancing policy hedge_elsewhere, which sends
// a hedge to a backend that its call has not used. It is asked for by the service config,
// and wraps any other policy, of which it is the parent; round_robin if none is named:
//
//	{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"least_request_experimental":{}}]}}]}
//
// For a hedge it asks that policy up to five times. If there is no backend that the call
// has not used, one that only its hedges have used will do. If all five are the primary's
// though another is ready, the hedge is not sent, and counts as [DeniedSameBackend]: so it is
// for policies that always send a call to the same backend, such as ring_hash. If no other is
// ready, the hedge goes to the primary's as it would without. Picks that are not used count
// as successes in the policy below, so put outlier detection above hedge_elsewhere.
type Interceptor struct {
	handle
	grpc  grpcConfig // written by connect, and not changed after it
	rules methodRules
	calls sync.Pool // of *rpc
}

// NewInterceptor returns an Interceptor. Options that concern HTTP have no effect, but
// it panics if the pattern of a [WithRoute] is one for HTTP.
func NewInterceptor(opts ...Option) *Interceptor {
	in := new(Interceptor)
	in.mustInit("grpc", opts)
	in.connect()
	return in
}

// NewInterceptorWithConfig is [NewInterceptor] for settings that come from outside
// the program, as [NewWithConfig] is [New].
func NewInterceptorWithConfig(c Config, opts ...Option) (*Interceptor, error) {
	in := new(Interceptor)
	if err := in.init("grpc", c, opts); err != nil {
		return nil, err
	}
	in.connect()
	return in, nil
}

// connect takes the options of gRPC, and starts connecting the connection that was given for hedges.
func (in *Interceptor) connect() {
	in.grpc = grpcConfigOf(&in.options)
	in.rules.routes, in.rules.listed, in.rules.log = in.options.routes, in.options.methods, in.log
	if given := in.grpc.conn; given != nil {
		given.Connect()
	}
}

// NewUnaryClientInterceptor returns [Interceptor.Unary] of an Interceptor of its own.
func NewUnaryClientInterceptor(opts ...Option) grpc.UnaryClientInterceptor {
	return NewInterceptor(opts...).Unary()
}

// Unary returns an interceptor that hedges unary calls.
//
// [WithMethods] says which methods are hedged. The primary runs in the caller's
// goroutine with the caller's request, reply and options. A hedge has its own: a copy
// of the request, and a reply, header, trailer and peer that are copied to the caller's
// if it wins. The call returns when the primary has, and does not wait for a hedge that
// is cancelled and slow to end: the caller may use request and reply again. Only if
// the request is no proto.Message, and so cannot be copied, every attempt has ended.
//
// grpc-retry-pushback-ms and ResourceExhausted from the server count as push-back, and
// a call that got one is not hedged again. That a message is larger than grpc allows is
// ResourceExhausted as well, and does not count. Hedges carry
// grpc-previous-rpc-attempts (gRFC A6). No hedge is sent over a connection that is
// not READY, where it would only wait. A test whose invoker does not use the connection
// therefore passes a nil *grpc.ClientConn, or sees no hedge.
//
// Interceptors before it see one call, those after it each attempt. gRPC's own
// retries multiply with hedges: grpc.WithDisableRetry prevents that.
func (in *Interceptor) Unary() grpc.UnaryClientInterceptor {
	in.mustBeMade()
	return in.intercept
}

func (in *Interceptor) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	o, m, reason := in.decide(ctx, method)
	if reason != engine.None {
		p := in.unhedged(ctx, cc, method, reason)
		err := invoker(nestedContext(ctx), method, req, reply, cc, opts...)
		p.Done(answer(err))
		return err
	}
	c, ok := in.calls.Get().(*rpc)
	if !ok {
		c = &rpc{in: in}
	}
	if name := in.name(ctx, cc, method); !c.key.Is(name) {
		c.key = in.engine.RouteKey(name, m.policy.BudgetPercent/100)
	}
	plan := c.Begin(ctx, c.key, cmp.Or(o.Delay, m.policy.Delay))
	c.method, c.req, c.reply, c.cc, c.invoker = method, req, reply, cc, invoker
	var delays []time.Duration
	if plan == nil {
		in.stats.WarmupRequests.Add(1)
	} else {
		delays, c.replyType = plan.Delays, grpcattempt.ReplyTypeOf(reply)
	}
	var finish []func(error)
	c.opts, finish = grpcattempt.TakeFinish(opts)
	out := c.run(ctx, delays)
	err := out.Value
	if out.Winner > 0 {
		h := &c.hedges[out.Winner]
		grpcattempt.Publish(reply, h.reply)
		for _, deliver := range h.deliver {
			deliver()
		}
	}
	c.End(answer(err), out.Winner > 0, 0)
	in.tally(&c.Call, out.Winner)
	out.Attempt.Release()
	for _, f := range finish {
		f(err)
	}
	if c.race.Reset() { // no hedge was sent
		c.Forget()
		c.req, c.reply, c.cc, c.invoker, c.opts, c.replyType, c.primary = nil, nil, nil, nil, nil, grpcattempt.ReplyType{}, nil
		c.barred.Store(false)
		in.calls.Put(c)
	}
	return err
}

// run runs the race. When it returns, or panics, no hedge uses what is the caller's any more.
func (c *rpc) run(ctx context.Context, delays []time.Duration) race.Result[error] {
	defer c.close()
	c.primary = new(grpcattempt.Primary)
	return c.race.Run(ctx, c, c, delays, race.Style{Join: !grpcattempt.Copyable(c.req), Watch: c.Watch(), Primary: &c.primary.Attempt})
}

// decide counts a call. It returns what its caller and its method ask for, and why it is sent
// once, or [engine.None] if it may be hedged.
func (in *Interceptor) decide(ctx context.Context, method string) (o engine.Overrides, m *methodRule, reason Reason) {
	o, facts := in.begin(ctx)
	if !facts.SwitchedOff {
		m = in.rules.of(method)
		facts.RouteOff, facts.Unsafe = m.policy.Off, !m.hedgeable
	}
	return o, m, in.refuses(o, facts)
}

// unhedged begins a call that is sent once.
func (in *Interceptor) unhedged(ctx context.Context, cc *grpc.ClientConn, method string, reason Reason) engine.Unhedged {
	if !in.engine.Observed() {
		return engine.Unhedged{}
	}
	return in.engine.BeginUnhedged(ctx, in.name(ctx, cc, method), reason)
}

func (in *Interceptor) name(ctx context.Context, cc *grpc.ClientConn, method string) engine.Name {
	target := ""
	if cc != nil {
		target = cc.Target()
	}
	if f := in.options.key; f != nil {
		return engine.Name{Host: f(ctx, target, method)}
	}
	return engine.Name{Host: target, Route: method}
}

// rpc is one call in flight: the Op and the Gate of its race. The value that is raced
// for is the error that the caller will see.
type rpc struct {
	engine.Call
	race      race.Race[error]
	in        *Interceptor
	key       *engine.Key // kept for the next call, which is often one of the same key
	primary   *grpcattempt.Primary
	method    string
	req       any
	reply     any
	cc        *grpc.ClientConn
	invoker   grpc.UnaryInvoker
	opts      []grpc.CallOption
	replyType grpcattempt.ReplyType
	hedges    [1 + race.MaxHedges]hedged
	detours   elsewhere.Detours
	barred    atomic.Bool // a server has pushed back: no more hedges of this call

	mu   sync.Mutex // held while a hedge reads the caller's request and options
	over bool       // the caller may use them again; guarded by mu
}

// hedged is what a hedge received.
type hedged struct {
	reply   any
	trailer metadata.MD
	deliver []func() // copy it to the targets of the caller's options
}

var errNotFinal = errors.New("hedge: another attempt may get a better status")

// close waits for hedges that read what is the caller's, and keeps others from it.
func (c *rpc) close() {
	if c.Hedges > 0 {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
	}
}

// copies returns a copy of the caller's request, and the caller's options with
// targets of their own. It returns false if the call is over.
func (c *rpc) copies(h *hedged) (req any, opts []grpc.CallOption, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, nil, false
	}
	opts, h.deliver = grpcattempt.OwnTargets(c.opts)
	return grpcattempt.CopyOf(c.req), opts, true
}

// Admit refuses hedges that could not be made or would only queue.
func (c *rpc) Admit(index int) bool {
	denial := engine.None
	switch conn := c.in.hedgeConn(c.cc); {
	case c.barred.Load():
		denial = DeniedPaused
	case conn != nil && !ready(conn):
		denial = DeniedNotReady
	case !c.replyType.Known():
		denial = DeniedNotReady
	}
	return c.AdmitUnless(index, denial)
}

// ready reports whether a hedge over conn would start at once. It connects a conn
// that is idle: otherwise only a call would, and none is sent.
func ready(conn *grpc.ClientConn) bool {
	state := conn.GetState()
	if state == connectivity.Idle {
		conn.Connect()
	}
	return state == connectivity.Ready
}

// hedgeConn returns the connection for the hedges of a call over cc.
func (in *Interceptor) hedgeConn(cc *grpc.ClientConn) *grpc.ClientConn {
	if own := in.grpc.conn; own != nil {
		return own
	}
	return cc
}

func (c *rpc) Attempt(a *race.Attempt, n int) (error, error) {
	if n == 0 {
		p := c.primary
		err := c.invoker(p, c.method, c.req, c.reply, c.cc, p.Options(c.opts)...)
		return err, c.judge(err, p.Trailer, n, a)
	}
	h := &c.hedges[n]
	req, opts, ok := c.copies(h)
	if !ok {
		return race.ErrLost, race.ErrLost
	}
	h.reply = c.replyType.New()
	d := c.detours.For(hedgeContext(a, n), n, c.method, &c.primary.Trail)
	err := c.invoker(d, c.method, req, h.reply, c.in.hedgeConn(c.cc), append(opts, grpc.Trailer(&h.trailer))...)
	if err != nil && d.Refused() {
		c.Refuse(DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, c.judge(err, h.trailer, n, a)
}

// judge records push-back, and returns nil if err is the answer to the call.
func (c *rpc) judge(err error, trailer metadata.MD, n int, a *race.Attempt) error {
	switch {
	case err == nil:
		return nil
	case n > 0 && turnedAway(err, trailer):
		return race.ErrRefused
	case c.in.pushedBack(c.key, err, trailer):
		c.barred.Store(true)
	}
	return c.in.final(status.Code(err), n, a.Err() != nil)
}

// pushedBack tells the key if a server that failed pushed back, and reports whether it did.
func (in *Interceptor) pushedBack(k *engine.Key, err error, trailer metadata.MD) bool {
	now := time.Now()
	if v := trailer["grpc-retry-pushback-ms"]; len(v) > 0 {
		ms, _ := strconv.ParseUint(v[0], 10, 31) // gRFC A6: negative or not a number means stop
		k.PushBack(now, time.Duration(ms)*time.Millisecond)
		return true
	}
	if status.Code(err) == codes.ResourceExhausted && !tooLarge(err) {
		k.PushBack(now, 0)
		return true
	}
	return false
}

// tooLarge reports whether a ResourceExhausted is about the size of a message, which
// says nothing of the server's load. The text is all there is to tell by: a status that grpc
// makes here and one that a server sends look alike, and a server has the same limits.
// The phrases are those of grpc-go, and of gRPC's other implementations in C, Java and .NET.
func tooLarge(err error) bool {
	text := status.Convert(err).Message()
	for _, phrase := range [...]string{"larger than max", "message too large", "message exceeds"} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}

// final returns nil if no other attempt could better the status of attempt n.
func (in *Interceptor) final(code codes.Code, n int, cancelled bool) error {
	switch {
	case n == 0 && !cancelled && !in.grpc.nonFatal[code]:
		return nil
	case n > 0 && deterministic(code):
		return nil
	}
	return errNotFinal
}

func (c *rpc) Discard(_ error, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.in.stats.HedgePanics.Add(1)
	}
}
