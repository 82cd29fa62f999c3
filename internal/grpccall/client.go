// Package grpccall makes gRPC calls that may be hedged, unary calls and streams from a server: it finds the rule of a method, makes the attempts, judges
// their statuses and delivers the reply of the winner. It implements hedge.Interceptor, which documents the behaviour.
package grpccall

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/conns"
	"github.com/gohedge/hedge/internal/elsewhere" // registers hedge_elsewhere
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/grpctarget"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/route"
	"github.com/gohedge/hedge/internal/serviceconfig"
	"github.com/gohedge/hedge/observe"
)

// Options are the options of a Client. They do not change once it has made a call. Each zero value selects the default.
type Options struct {
	KeyFunc       func(ctx context.Context, target, method string) string // returns the latency key; nil: it is the target and the method
	Routes        *route.Table                                            // nil: none
	Methods       []string                                                // patterns of methods that are safe to send twice
	DeclaredOnly  bool                                                    // no method is hedged because of its name
	HedgeConns    *conns.Set                                              // connections for hedges; nil: that of the primary
	NonFatalCodes map[codes.Code]bool                                     // codes of a primary that waits for its hedges; nil: [DefaultNonFatalCodes]
	AnswerCodes   map[codes.Code]bool                                     // codes with which any attempt wins, beside OK
	ServiceConfig *serviceconfig.Config                                   // nil: none
}

// A Client makes gRPC calls over any number of connections. It is safe for concurrent use.
type Client struct {
	*calls.Client
	options Options
	rules   methodRules
	book    serviceconfig.Book // the configs in force; an empty one if there is none
	calls   sync.Pool          // of *rpc
	buffers grpcattempt.Buffers
	waker   conns.Waker // of connections that hedges share with their primaries
}

// DefaultNonFatalCodes are the codes after which another attempt may do better.
var DefaultNonFatalCodes = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Aborted: true, codes.Internal: true, codes.Unknown: true,
	codes.DeadlineExceeded: true, codes.Canceled: true, codes.DataLoss: true,
}

// NewClient returns a Client, and starts to connect the connections for hedges.
func NewClient(shared *calls.Client, o Options) *Client {
	if o.NonFatalCodes == nil {
		o.NonFatalCodes = DefaultNonFatalCodes
	}
	in := &Client{Client: shared, options: o}
	in.rules = methodRules{
		routes: o.Routes, listed: o.Methods, declared: o.DeclaredOnly,
		aside: serviceconfig.IsObeyedBy(grpc.Version), log: shared.Log,
	}
	in.book.Set(o.ServiceConfig, "the program")
	in.logIgnored("", o.ServiceConfig)
	o.HedgeConns.Connect()
	return in
}

// logIgnored logs which values of a config gRPC accepts and hedging does not use.
func (in *Client) logIgnored(target string, c *serviceconfig.Config) {
	if c != nil && len(c.Ignored) > 0 {
		in.Log.Tell(slog.LevelWarn, "service config: hedging ignores a value that gRPC accepts", slog.String("target", target), slog.Any("ignored", c.Ignored))
	}
}

// SetServiceConfig puts a config in force that the program gives, for targets without a config of their own. The source is the name of the function
// that the program has called.
func (in *Client) SetServiceConfig(c *serviceconfig.Config, source string) {
	if in.book.Set(c, source) {
		in.logConfig("", c)
	}
}

// Resolver returns b, whose service configs the Client obeys as well.
func (in *Client) Resolver(b resolver.Builder) resolver.Builder {
	return (&serviceconfig.Reader{Book: &in.book, Tell: func(target string, c *serviceconfig.Config, err error) {
		if err != nil {
			in.Log.Tell(slog.LevelWarn, "service config refused", slog.String("target", target), slog.String("error", err.Error()))
			return
		}
		in.logConfig(target, c)
	}}).Wrap(b)
}

// logConfig logs that a config is in force; for all targets without one if target is "".
func (in *Client) logConfig(target string, c *serviceconfig.Config) {
	in.Log.Tell(slog.LevelInfo, "service config in force", slog.String("target", target), slog.Int("hedging_policies", c.Policies()),
		slog.Bool("retry_throttling", c.Throttling != nil), slog.Any("unknown", c.Unknown))
	in.logIgnored(target, c)
}

// MaxHedgesOf returns the most hedges of a slow call of a method, and the reason. It is 0 if the method is sent once. Configs of resolvers do not count.
func (in *Client) MaxHedgesOf(method string) (most int, why string) {
	rule := in.rules.find(in.book.All(), method)
	if !rule.hedgeable {
		return 0, rule.why
	}
	if most = rule.terms.Most(in.Settings().MaxHedges); most == 0 {
		return 0, "MaxHedges is 0"
	}
	return most, rule.why
}

// DescribeKey returns the source of the hedging policy of a key, "" if it has none, and the delays of its next call, given the learned ones.
func (in *Client) DescribeKey(host, route string, learned []time.Duration) (source string, delays []time.Duration) {
	live := in.book.Of(host)
	if live.Config == nil || route == "" {
		return "", learned
	}
	rule := in.rules.find(live, route)
	if rule.hedging == nil {
		return "", learned
	}
	source, delays = rule.hedging.Path+" of "+live.Source, learned
	d := cmp.Or(rule.policy.Delay, rule.terms.Delay)
	switch {
	case len(learned) == 0:
	case rule.terms.Fixed || d > 0:
		delays = policy.NewFixedSchedule(d, rule.terms.Hedges).Delays
	default:
		delays = policy.ResizeDelays(learned, rule.terms.Hedges)
	}
	return source, delays
}

// InterceptUnary is a [grpc.UnaryClientInterceptor].
func (in *Client) InterceptUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c := in.callOver(cc)
	c.asked.called.Method, c.asked.req, c.asked.reply, c.asked.invoker, c.asked.opts = method, req, reply, invoker, opts
	return in.call(ctx, c)
}

// call makes a call that was asked for, and frees it.
func (in *Client) call(ctx context.Context, c *rpc) (err error) {
	asked := &c.asked
	o := race.OverridesFrom(ctx)
	if o.Hedge > 0 && isHedgeOver(ctx, hedgeOver{in, asked.cc, asked.called.Method}) {
		err = asked.invoker(ctx, asked.called.Method, asked.req, asked.reply, asked.cc, asked.opts...)
		c.free()
		return err
	}
	m, delay, reason := in.decide(ctx, o, asked.cc, asked.called, func(m *methodRule) grpcattempt.Obstacle {
		if o := m.known.Divide(&c.parts, asked.req, asked.reply, asked.opts); o != grpcattempt.None || in.options.HedgeConns == nil || !c.parts.Request.IsPrepared() {
			return o
		}
		return grpcattempt.WholeRequest // of another connection, whose codec and compressor may differ
	})
	target := asked.called.Target
	if reason == policy.None {
		err = c.sendHedged(ctx, m, delay)
	} else {
		err = c.sendOnce(ctx, reason)
	}
	m.ended(target, err)
	return err
}

// sendHedged makes a call that may be hedged, by rule m.
func (c *rpc) sendHedged(ctx context.Context, m *methodRule, delay time.Duration) error {
	c.prepare(ctx, m)
	delays := c.plan(ctx, c.asked.cc, delay)
	if len(delays) > 0 && !c.keepRequest() {
		delays = nil
	}
	out := c.run(ctx, delays)
	err := c.deliver(out)
	c.free()
	return err
}

// decide counts a call of a caller who asks for o. It returns the rule of its method, the delay that the caller or the rule
// asks for (0: none), and why it is sent once, or [policy.None] if it may be hedged. It asks for
// the call's obstacle if nothing else keeps it from being hedged.
func (in *Client) decide(ctx context.Context, o race.Overrides, cc *grpc.ClientConn, c race.Called, obstacle func(*methodRule) grpcattempt.Obstacle) (m *methodRule, delay time.Duration, reason observe.Reason) {
	facts := in.CountCall()
	if !facts.SwitchedOff {
		m = in.rules.of(in.book.Of(c.Target), c.Method)
		facts.Again = o.Above == c
		facts.RouteOff, facts.Unsafe = m.policy.Off, !m.hedgeable
		delay = cmp.Or(o.Delay, m.policy.Delay)
		if facts.Reason(o) == policy.None {
			why := grpcattempt.OtherTarget
			if in.options.HedgeConns.Serve(cc) {
				why = obstacle(m)
			}
			if why == grpcattempt.None {
				return m, delay, policy.None
			}
			facts.Unrepeated = true
			in.rules.tell(m, c.Method, why)
		}
	}
	return m, delay, in.IneligibleReason(o, facts)
}

// called returns the target and the method of a call over cc. A nil cc has the target "".
func called(cc *grpc.ClientConn, method string) race.Called {
	return race.Called{Target: grpctarget.Of(cc), Method: method}
}

// sendOnce makes a call without hedges.
func (c *rpc) sendOnce(ctx context.Context, reason observe.Reason) error {
	asked := &c.asked
	told := c.in.beginUnhedged(ctx, asked.called, reason)
	err := asked.invoker(onceContext(ctx, asked.called), asked.called.Method, asked.req, asked.reply, asked.cc, asked.opts...)
	told.Done(c.in.isAnswer(err))
	c.free()
	return err
}

// beginUnhedged tells observers, if there are any, of a call that is sent once.
func (in *Client) beginUnhedged(ctx context.Context, c race.Called, reason observe.Reason) policy.Unhedged {
	if !in.Policy.Observed() {
		return policy.Unhedged{}
	}
	return in.Policy.BeginUnhedged(ctx, in.name(ctx, c), reason)
}

// name returns the name of a call's key.
func (in *Client) name(ctx context.Context, c race.Called) policy.Name {
	if f := in.options.KeyFunc; f != nil {
		return policy.Name{Host: f(ctx, c.Target, c.Method)}
	}
	return policy.Name{Host: c.Target, Route: c.Method}
}

// callOver returns an rpc for a call over cc.
func (in *Client) callOver(cc *grpc.ClientConn) *rpc {
	c, ok := in.calls.Get().(*rpc)
	if !ok {
		c = &rpc{hedging: hedging{in: in}}
	}
	if asked := &c.asked; asked.cc != cc {
		asked.cc, asked.called.Target = cc, grpctarget.Of(cc)
	}
	return c
}

// prepare makes c ready for a race of a call whose method has rule m.
func (c *rpc) prepare(ctx context.Context, m *methodRule) {
	if c.rule != m || m.throttled {
		c.rule, c.throttle = m, m.throttle(c.asked.called.Target)
	}
	if opts, finish := grpcattempt.TakeFinish(c.asked.opts); len(finish) > 0 {
		c.asked.opts, c.finish = opts, &grpcattempt.Finish{Functions: finish}
	}
	if name := c.in.name(ctx, c.asked.called); !c.key.Is(name) {
		c.key = c.in.Policy.RouteKey(name, m.policy.BudgetPercent/100)
	}
}

// unaryCall is what the caller of a unary call passed.
type unaryCall struct {
	called     race.Called      // its target is kept for the next call, which often goes over the same connection
	cc         *grpc.ClientConn // kept as well: the pool of calls is emptied by the garbage collector
	req, reply any
	invoker    grpc.UnaryInvoker
	opts       []grpc.CallOption
}

// rpc is one unary call in flight: the Op and the Gate of its race. The value that is raced
// for is the error that the caller will see. It is used again if no hedge was due.
type rpc struct {
	hedging
	race race.Race[error]

	// Written before the race begins. A hedge takes copies of the request and the options.
	asked   unaryCall           // without options of OnFinish
	finish  *grpcattempt.Finish // of those options; nil: there are none
	primary *grpcattempt.Primary
	parts   grpcattempt.Parts
	buffer  []byte // for requests, see [grpcattempt.Request.Encode]

	hedges [1 + race.MaxHedges]hedged // each written by its attempt, and read by deliver if that has won

	mu   sync.Mutex // held while a hedge reads asked; guards over
	over bool       // the caller may use again what it passed
}

// hedged is what a hedge received.
type hedged struct {
	reply   any
	trailer metadata.MD
	deliver []func() // copy it to the targets of the caller's options
}

// run runs the race. When it returns, or panics, no hedge uses what is the caller's any more.
func (c *rpc) run(ctx context.Context, delays []time.Duration) race.Result[error] {
	defer c.close()
	c.primary = new(grpcattempt.Primary)
	style := &c.race.Style
	style.Usual, style.Watch, style.Primary, style.SeverHedges, style.Fresh = c.Usual(), c.Watch(), &c.primary.Attempt, true, c.InBubble()
	if len(delays) > 0 {
		style.Call = c.in.NestingMark(c.asked.called)
	}
	return c.race.Run(ctx, c, c, delays)
}

// keepRequest keeps the request as it is if something below, or the reply, may change it before a hedge copies it. It reports whether
// hedges can copy it.
func (c *rpc) keepRequest() bool {
	if r := &c.parts.Request; r.NeedsEncoding() || !grpcattempt.Invokes(c.asked.invoker) {
		c.buffer = r.Encode(c.buffer)
	}
	return c.parts.Request.Divisible()
}

// close waits for hedges that read what is the caller's, and keeps others from it.
func (c *rpc) close() {
	if c.Hedges > 0 {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
	}
}

// deliver gives the caller what the race has found, and ends the call.
func (c *rpc) deliver(out race.Result[error]) error {
	err := out.Value
	if out.Winner > 0 {
		h := &c.hedges[out.Winner]
		if err == nil {
			grpcattempt.Publish(c.asked.reply, h.reply)
		}
		for _, deliver := range h.deliver {
			deliver()
		}
	}
	c.NotTaken = out.NotTaken
	c.End(c.in.isAnswer(err), out.Winner > 0, 0)
	c.in.CountOutcome(&c.Call, out.Winner)
	out.Attempt.Release()
	if c.finish != nil {
		c.finish.Choose(max(out.Winner, 0))
	}
	return err
}

// free lets another call use c, unless a hedge may still do so.
func (c *rpc) free() {
	if !c.race.Reset() {
		return
	}
	c.Forget()
	c.tour.Forget()
	c.asked.req, c.asked.reply, c.asked.invoker, c.asked.opts = nil, nil, nil, nil
	c.finish, c.primary = nil, nil
	c.parts = grpcattempt.Parts{}
	if cap(c.buffer) > grpcattempt.MaxBuffer {
		c.buffer = nil
	}
	c.barred.Store(false)
	c.in.calls.Put(c)
}

// Admit decides about a hedge.
func (c *rpc) Admit(index int) bool { return c.admit(index, c.asked.cc, true, c.deadline()) }

// deadline returns when the timeout of the method passes.
func (c *rpc) deadline() grpcattempt.Deadline {
	return grpcattempt.MethodDeadline(c.asked.cc, c.asked.called.Method, time.Now().Add(-c.Elapsed()))
}

// judge is [hedging.judge] for the status of attempt n.
func (c *rpc) judge(a *race.Attempt, n int, err error, trailer metadata.MD) error {
	var deadline grpcattempt.Deadline
	if err != nil {
		deadline = c.deadline()
	}
	return c.hedging.judge(a, n, err, trailer, deadline)
}

func (c *rpc) Attempt(a *race.Attempt, n int) (error, error) {
	if n > 0 {
		return c.hedge(a, n)
	}
	p, asked := c.primary, &c.asked
	opts := p.Options(asked.opts)
	if c.finish != nil {
		opts = slices.Clip(append(opts, c.finish.Option(0)))
	}
	err := asked.invoker(p, asked.called.Method, asked.req, asked.reply, asked.cc, opts...)
	return err, c.judge(a, n, err, p.Trailer)
}

// hedge makes attempt n with a request, a reply and targets of its own.
func (c *rpc) hedge(a *race.Attempt, n int) (error, error) {
	h, asked, cc := &c.hedges[n], &c.asked, c.tour.Over(n, c.asked.cc)
	req, md, opts, ok := c.copies(a, h, cc)
	if !ok {
		return race.ErrLost, race.ErrLost
	}
	if c.finish != nil {
		opts = append(opts, c.finish.Option(n))
	}
	h.reply = c.parts.ReplyType.New()
	ctx, cancel := c.deadline().Limit(hedgeContext(a, md, n))
	defer cancel()
	invoke := asked.invoker
	if cc != asked.cc {
		ctx, invoke = withHedgeOver(ctx, hedgeOver{c.in, cc, asked.called.Method}), invokeOver
	}
	detour := c.detours.For(ctx, n, &c.primary.Trail)
	opts = slices.Clip(append(opts, grpc.Trailer(&h.trailer)))
	err := invoke(detour, asked.called.Method, req, h.reply, cc, opts...)
	if err != nil && detour.Refused() {
		c.tour.Refuse(a, &c.Call, n, observe.DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, c.judge(a, n, err, h.trailer)
}

// copies returns a copy of the caller's request and metadata, and the caller's options for a hedge over cc, with
// targets of their own. It returns false if the call is over, or the request cannot be copied.
func (c *rpc) copies(a *race.Attempt, h *hedged, cc *grpc.ClientConn) (req any, md metadata.MD, opts []grpc.CallOption, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, nil, nil, false
	}
	opts = c.asked.opts
	if cc != c.asked.cc {
		opts = grpcattempt.WithoutDefaults(opts, c.asked.cc)
	}
	opts, h.deliver = grpcattempt.OwnTargets(opts)
	md, _ = metadata.FromOutgoingContext(a)
	if a.Err() != nil { // it has lost, and a may have no values of the caller's context any more
		return nil, nil, nil, false
	}
	req, ok = c.parts.Request.Copy()
	return req, md, opts, ok
}

// hedging is what a call that may be hedged has, be it unary or a stream.
type hedging struct {
	policy.Call

	// Written before the race begins.
	in       *Client
	rule     *methodRule             // an rpc keeps it as it does the key
	throttle *serviceconfig.Throttle // nil: there is none
	key      *policy.Key             // an rpc keeps it for its next call, which is often one of the same key
	ahead    time.Duration           // so long before its race the call began

	tour    conns.Tour // over the connections for hedges
	detours elsewhere.Detours
	barred  atomic.Bool // a server of the call's target has pushed back: no more hedges of this call
}

// plan begins the call, which is made over cc, and returns when its hedges are due. The key is known.
func (h *hedging) plan(ctx context.Context, cc *grpc.ClientConn, delay time.Duration) []time.Duration {
	h.tour.Begin(h.in.options.HedgeConns, cc, h.key)
	plan := h.BeginOn(ctx, h.key, delay, h.rule.terms)
	if plan == nil {
		h.in.Counters.WarmupRequests.Add(1)
		return nil
	}
	return plan.Delays
}

// admit decides about a hedge of a call over cc. It refuses those that could not be made, which are not able, would only queue, or have
// no time until the deadline.
func (h *hedging) admit(index int, cc *grpc.ClientConn, able bool, deadline grpcattempt.Deadline) bool {
	due := conns.Due{Held: h.held()}
	switch own := h.in.options.HedgeConns == nil; {
	case deadline.Before(h.leastTime()):
		due.Denial = observe.DeniedDeadline
	case own && due.Held:
		due.Denial = observe.DeniedPaused
	case !able, own && cc != nil && !h.in.waker.Ready(cc):
		due.Denial = observe.DeniedNotReady
	}
	return h.tour.Admit(&h.Call, index, due)
}

// leastTime returns how long an answer must be expected to take for a hedge to be sent, as of a caller's deadline.
func (h *hedging) leastTime() time.Duration {
	if p := h.key.Schedule(); p != nil {
		return p.Median
	}
	return 0
}

// held reports whether the call's target holds back hedges of the call.
func (h *hedging) held() bool { return h.barred.Load() || !h.throttle.Open() }

// pushedBack has no more hedges of the call sent where attempt n was.
func (h *hedging) pushedBack(n int) {
	if h.tour.Elsewhere(n) {
		h.tour.PushedBack(n)
	} else {
		h.barred.Store(true)
	}
}

var errNotFinal = errors.New("hedge: another attempt may get a better status")

// judge takes note of push-back and how connections fare, and returns what err, with which attempt n has ended, is for the
// race: nil for a success, [race.ErrAnswer] for an answer of the primary alone. The timeout of the call passes at the deadline.
func (h *hedging) judge(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	verdict := h.verdict(a, n, err, trailer, deadline)
	if h.in.options.HedgeConns != nil {
		h.tour.Ended(a, n, h.in.isAnswer(err) && !h.in.lacksCredentials(err), verdict == race.ErrRefused || n > 0 && deadline.Before(0))
	}
	return verdict
}

func (h *hedging) verdict(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	switch {
	case err == nil:
		return nil
	case n > 0 && (turnedAway(err, trailer) || err == elsewhere.ErrSameBackend): // the latter of a retry; errors.Is would write to a status of the caller's
		return race.ErrRefused
	}
	if wait, pushed := grpcattempt.PushedBack(err, trailer); pushed {
		if !h.tour.Elsewhere(n) {
			h.key.PushBack(time.Now(), wait)
		}
		if h.rule.hedging == nil {
			h.pushedBack(n)
		}
	}
	switch code := status.Code(err); {
	case h.in.options.AnswerCodes[code]:
		return nil
	case h.rule.hedging != nil:
		return h.goOn(a, n, err, trailer, deadline)
	case a.Err() == nil && (!h.in.options.NonFatalCodes[code] || n == 0 && deadline.Ended(err, trailer)):
		return race.ErrAnswer
	}
	return errNotFinal
}

// goOn returns what the failure err of attempt n is for the race of a call whose method has a hedging policy.
func (h *hedging) goOn(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	if a.Err() != nil || h.tour.Closed(n) {
		return errNotFinal
	}
	nonFatal := h.rule.hedging.NonFatal(status.Code(err))
	after, stop := grpcattempt.NextAfter(trailer)
	if (nonFatal || stop) && !h.tour.Elsewhere(n) {
		h.throttle.Failed()
	}
	if stop {
		h.pushedBack(n)
	}
	if !nonFatal || n == 0 && deadline.Ended(err, trailer) {
		return race.ErrAnswer
	}
	turn := &race.Turn{Took: h.Elapsed() - h.ahead, After: after}
	usual := h.tour.Usual()
	hold := after > 0 && (deadline.Before(after) || h.held() && !usual.OtherBackend || h.WouldBeDenied(a, time.Now().Add(after), usual)) // for nothing
	if !stop && !hold {
		turn.Hedges = h.rule.terms.Hedges
		h.MarkRescheduled()
	}
	return turn
}

// Discard counts hedges that panicked. There is nothing to release.
func (h *hedging) Discard(_ error, err error) {
	if _, ok := err.(*race.Panic); ok {
		h.in.Counters.HedgePanics.Add(1)
	}
}

// lacksCredentials reports whether an attempt ended with err because its connection has not the credentials that its server wants. That is
// no answer of the connection: hedges over it win nothing.
func (in *Client) lacksCredentials(err error) bool {
	return status.Code(err) == codes.Unauthenticated && !in.options.AnswerCodes[codes.Unauthenticated]
}

// isAnswer reports whether a call that ended with err shows how long an answer takes.
func (in *Client) isAnswer(err error) bool {
	switch code := status.Code(err); code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	default:
		return in.options.AnswerCodes[code]
	}
}

// turnedAway reports whether a Limiter turned a hedge away that ended with err.
func turnedAway(err error, trailer metadata.MD) bool {
	return status.Code(err) == codes.Unavailable && len(trailer.Get(limit.RefusedHeader)) > 0
}
