package grpccall

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/grpctarget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// UnaryInterceptor returns an interceptor that hedges unary calls that are eligible for hedging and slow. It is a function
// literal, because a method value would copy the arguments of each call once more.
func (in *Client) UnaryInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		c := in.newCall(cc)
		c.args.callTarget.Method, c.args.req, c.args.reply, c.args.invoker, c.args.opts = method, req, reply, invoker, opts
		return in.makeCall(ctx, c)
	}
}

// makeCall makes the call c, whose arguments must be set, and then frees c. It returns the status of the call.
func (in *Client) makeCall(ctx context.Context, c *unaryCall) (err error) {
	args := &c.args
	o := race.OverridesFrom(ctx)
	if o.Hedge > 0 && isHedgeOnConn(ctx, hedgeOnConn{in, args.cc, args.callTarget.Method}) {
		err = args.invoker(ctx, args.callTarget.Method, args.req, args.reply, args.cc, args.opts...)
		c.freeCall()
		return err
	}
	c.IsRetry = o.Retry
	m, delay, reason := in.checkEligibility(o, args.cc, args.callTarget, func(m *methodRule) grpcattempt.Obstacle {
		if o := m.typeCache.FillTemplate(&c.template, args.req, args.reply, args.opts); o != grpcattempt.None || in.options.HedgeConns == nil || !c.template.Request.IsPrepared() {
			return o
		}
		return grpcattempt.UncloneableRequest // the message is encoded for one connection; others may have another codec or compressor
	})
	target := args.callTarget.Target
	if reason == policy.None {
		err = c.sendHedged(ctx, m, delay)
	} else {
		err = c.sendWithoutHedges(ctx, reason)
	}
	m.recordSuccess(target, err)
	return err
}

// sendHedged makes a call that may be hedged. The argument m holds the settings of the method. If delay is not 0, it
// replaces the learned hedge delays.
func (c *unaryCall) sendHedged(ctx context.Context, m *methodRule, delay time.Duration) error {
	c.applyRule(ctx, m)
	delays := c.beginCall(ctx, c.args.cc, delay)
	if len(delays) > 0 && !c.snapshotRequest() {
		delays = nil
	}
	var out race.Result[error]
	c.runRace(ctx, delays, &out)
	err := c.deliverResult(&out)
	c.freeCall()
	return err
}

// sendWithoutHedges makes a call that must not be hedged, for the given reason. It reports the call to observers.
func (c *unaryCall) sendWithoutHedges(ctx context.Context, reason observe.Reason) error {
	args := &c.args
	report := c.client.beginUnhedged(ctx, args.callTarget, reason)
	err := args.invoker(contextWithoutHedges(ctx, args.callTarget), args.callTarget.Method, args.req, args.reply, args.cc, args.opts...)
	report.End(c.client.isAnswer(err))
	c.freeCall()
	return err
}

// newCall returns a unaryCall for a call over cc, whose other arguments are not set yet. The caller must pass it to
// freeCall after use.
func (in *Client) newCall(cc *grpc.ClientConn) *unaryCall {
	c, ok := in.calls.Get().(*unaryCall)
	if !ok {
		c = &unaryCall{hedgedCall: hedgedCall{client: in}}
	}
	if args := &c.args; args.cc != cc {
		args.cc, args.callTarget.Target = cc, grpctarget.Name(cc)
	}
	return c
}

// applyRule sets the fields of c that depend on m, the settings of its method: the latency key, the throttle and the
// OnFinish functions.
func (c *unaryCall) applyRule(ctx context.Context, m *methodRule) {
	if c.rule != m || m.throttled {
		c.rule, c.throttle = m, m.throttleOf(c.args.callTarget.Target)
	}
	if len(c.args.opts) > 0 {
		if opts, finish := grpcattempt.SplitFinishFuncs(c.args.opts); len(finish) > 0 {
			c.args.opts, c.finishNotifier = opts, &grpcattempt.UnaryFinishNotifier{FinishNotifier: grpcattempt.FinishNotifier{Functions: finish}}
		}
	}
	if name := c.client.keyName(ctx, c.args.callTarget); !c.Key.IsCurrent(name) {
		c.Key = c.client.Policy.RouteKey(name, m.policy.BudgetPercent/100)
	}
}

// A unaryArgs holds the arguments with which the caller made a unary call.
type unaryArgs struct {
	callTarget race.CallTarget  // its target is kept for the next call, which often has the same connection
	cc         *grpc.ClientConn // also kept for the next call
	req, reply any
	invoker    grpc.UnaryInvoker
	opts       []grpc.CallOption
}

// A unaryCall is one unary call in flight. It implements [race.Op]. The value of the race is the error that the caller
// gets. A unaryCall is reused for another call if no hedge was sent.
type unaryCall struct {
	hedgedCall
	race     race.Race[error]
	schedule grpcattempt.Schedule

	// Written before the race begins. Hedges copy the request and the options.
	args           unaryArgs                        // without OnFinish options
	finishNotifier *grpcattempt.UnaryFinishNotifier // functions of OnFinish options; nil if there are none
	primary        *grpcattempt.Primary
	template       grpcattempt.CallTemplate
	buffer         []byte // memory for the encoded request, see [grpcattempt.Request.Encode]

	hedges [1 + race.MaxHedges]hedgeResult // by number of the attempt; each hedge writes its own element, and deliverResult reads the winner's element

	mu    sync.Mutex // guards ended; also held while a hedge reads args
	ended bool       // the call has ended, so the caller may change its request, reply and options
}

// A hedgeResult holds the reply and the trailer of one hedge until the race is decided.
type hedgeResult struct {
	reply   any
	trailer metadata.MD
	deliver []func() // functions that copy header, trailer and peer to the caller's variables
}

// runRace runs a race of the primary and hedges that start after the given delays, and stores its result in out. After it
// has returned or panicked, no hedge uses the caller's request, reply or options.
func (c *unaryCall) runRace(ctx context.Context, delays []time.Duration, out *race.Result[error]) {
	defer c.releaseRequest()
	c.primary = new(grpcattempt.Primary)
	style := &c.race.Style
	c.schedule.SetDelays(delays, c.P99Latency())
	style.Observer, style.Primary, style.Detach, style.FreshTimer = c.AttemptObserver(), &c.primary.Attempt, race.DetachHedges, c.IsInBubble()
	if len(delays) > 0 && c.client.MarksNesting() {
		c.primary.Call = c.args.callTarget
	}
	*out = c.race.Run(ctx, c, &c.schedule)
}

// snapshotRequest encodes the request if the request may change during the call. A later interceptor in the chain may
// change it, or decoding the reply may. It returns false if hedges cannot get a copy of the request.
func (c *unaryCall) snapshotRequest() bool {
	if r := &c.template.Request; r.NeedsEncoding() || !grpcattempt.IsGRPCInvoker(c.args.invoker) {
		c.buffer = r.Encode(c.buffer)
	}
	return c.template.Request.IsCloneable()
}

// releaseRequest waits until no hedge reads the caller's request, and prevents later reads. After it, the caller may
// change the request.
func (c *unaryCall) releaseRequest() {
	if c.Hedges > 0 {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
	}
}

// deliverResult copies the winner's reply, header, trailer and peer to the caller's variables. It records the outcome
// of the call and returns the status for the caller.
func (c *unaryCall) deliverResult(out *race.Result[error]) error {
	err := out.Value
	if out.Winner > 0 {
		h := &c.hedges[out.Winner]
		if err == nil {
			grpcattempt.CopyReply(c.args.reply, h.reply)
		}
		for _, deliver := range h.deliver {
			deliver()
		}
	}
	c.client.EndCall(&c.Call, policy.Outcome{Answered: c.client.isAnswer(err), Winner: out.Winner, AnswersNotTaken: out.AnswersNotTaken})
	out.Attempt.Release()
	if c.finishNotifier != nil {
		c.finishNotifier.Choose(max(out.Winner, 0))
	}
	return err
}

// freeCall clears c and makes it available to newCall, unless a hedge may still use c. The caller must not use c
// afterwards.
func (c *unaryCall) freeCall() {
	if !c.race.Reset() {
		return
	}
	c.ClearReferences()
	c.selection.Clear()
	c.args.req, c.args.reply, c.args.invoker, c.args.opts = nil, nil, nil, nil
	c.finishNotifier, c.primary = nil, nil
	c.template = grpcattempt.CallTemplate{}
	if cap(c.buffer) > grpcattempt.MaxBuffer {
		c.buffer = nil
	}
	c.targetExcluded.Store(false)
	c.client.calls.Put(c)
}

// Admit implements [race.Op]: it decides whether the hedge with the given index in the hedge schedule starts.
func (c *unaryCall) Admit(index int) bool {
	return c.admitHedge(index, c.args.cc, true, c.callDeadline())
}

// callDeadline returns the time at which the call times out, by the timeout of its method in the service config.
func (c *unaryCall) callDeadline() grpcattempt.Deadline {
	return grpcattempt.MethodDeadline(c.args.cc, c.args.callTarget.Method, time.Now().Add(-c.Elapsed()), !grpcattempt.IsGRPCInvoker(c.args.invoker))
}

// classifyAttempt returns the error by which the race decides whether attempt n has succeeded. The attempt ended with
// the status err and the given trailer. It also records pushback and the health of the connection.
func (c *unaryCall) classifyAttempt(a *race.Attempt, n int, err error, trailer metadata.MD) error {
	var deadline grpcattempt.Deadline
	switch {
	case err != nil:
		deadline = c.callDeadline()
	case c.client.options.HedgeConns == nil: // nothing to record
		return nil
	}
	return c.hedgedCall.classifyAttempt(a, n, err, trailer, deadline)
}

// Attempt implements [race.Op]: it makes attempt n. The first result is the status of the attempt. By the second, the
// race decides whether the attempt has succeeded.
func (c *unaryCall) Attempt(a *race.Attempt, n int) (error, error) {
	if n > 0 {
		return c.sendHedge(a, n)
	}
	p, args := c.primary, &c.args
	opts := p.CallOptions(args.opts)
	if c.finishNotifier != nil {
		opts = slices.Clip(append(opts, c.finishNotifier.CallOption(0)))
	}
	err := args.invoker(p, args.callTarget.Method, args.req, args.reply, args.cc, opts...)
	return err, c.classifyAttempt(a, n, err, p.Trailer)
}

// sendHedge makes attempt n, a hedge, with copies of the request and the options and with a new reply. The results are
// those of Attempt.
func (c *unaryCall) sendHedge(a *race.Attempt, n int) (error, error) {
	h, args, cc := &c.hedges[n], &c.args, c.selection.Attempt(n).Conn(c.args.cc)
	req, md, opts, ok := c.copyCall(a, h, cc)
	if !ok {
		return race.ErrLost, race.ErrLost
	}
	if c.finishNotifier != nil {
		opts = append(opts, c.finishNotifier.CallOption(n))
	}
	h.reply = c.template.ReplyType.NewReply()
	ctx, cancel := c.callDeadline().LimitContext(hedgeContext(a, md, n))
	defer cancel()
	invoke := args.invoker
	if cc != args.cc {
		ctx, invoke = withHedgeOnConn(ctx, hedgeOnConn{c.client, cc, args.callTarget.Method}), invokeOnConn
	}
	pick := c.hedgePicks.NewContext(ctx, n, &c.primary.PrimaryPick)
	opts = slices.Clip(append(opts, grpc.Trailer(&h.trailer)))
	err := invoke(pick, args.callTarget.Method, req, h.reply, cc, opts...)
	if err != nil && pick.IsRefused() {
		c.selection.Withdraw(a, &c.Call, n, observe.DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, c.classifyAttempt(a, n, err, h.trailer)
}

// copyCall returns copies of the caller's request, metadata and options, for hedge a over cc. It stores in h the
// functions that copy the outputs of the options to the caller. The result ok is false if the call has ended or the
// request cannot be copied.
func (c *unaryCall) copyCall(a *race.Attempt, h *hedgeResult, cc *grpc.ClientConn) (req any, md metadata.MD, opts []grpc.CallOption, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, nil, nil, false
	}
	opts = c.args.opts
	if cc != c.args.cc {
		opts = grpcattempt.WithoutDefaultOptions(opts, c.args.cc)
	}
	opts, h.deliver = grpcattempt.CloneOptions(opts)
	md, _ = metadata.FromOutgoingContext(a)
	if a.Err() != nil { // the hedge has lost, and a may no longer have the values of the caller's context
		return nil, nil, nil, false
	}
	req, ok = c.template.Request.Copy()
	return req, md, opts, ok
}
