package grpccall

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// InterceptStream is a [grpc.StreamClientInterceptor].
func (in *Client) InterceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o := race.OverridesFrom(ctx)
	if o.Hedge > 0 && isHedgeOver(ctx, hedgeOver{in, cc, method}) {
		return streamer(ctx, desc, cc, method, opts...)
	}
	asked := streamCall{ctx, desc, cc, called(cc, method), streamer, opts}
	m, delay, reason := in.decide(ctx, o, cc, asked.called, func(*methodRule) grpcattempt.Obstacle {
		switch {
		case desc.ClientStreams || !desc.ServerStreams:
			return grpcattempt.SeveralMessages
		case !grpcattempt.Divisible(opts):
			return grpcattempt.SharedOption
		}
		return grpcattempt.None // what is known when it is opened
	})
	if reason != policy.None {
		return in.openOnce(asked, m, reason)
	}
	s := in.streamOf(asked, m, delay)
	if err := s.openPrimary(); err != nil {
		return nil, err
	}
	return s, nil
}

// openOnce opens the stream of a call without hedges.
func (in *Client) openOnce(asked streamCall, m *methodRule, reason observe.Reason) (grpc.ClientStream, error) {
	if m.counts() {
		asked.opts = append(slices.Clip(asked.opts), grpc.OnFinish(func(err error) { m.ended(asked.called.Target, err) }))
	}
	if !in.Policy.Observed() {
		return asked.streamer(onceContext(asked.ctx, asked.called), asked.desc, asked.cc, asked.called.Method, asked.opts...)
	}
	var once grpcattempt.Once
	once.Begin(in.beginUnhedged(asked.ctx, asked.called, reason).Done)
	done := func(err error) { once.Done(err == io.EOF || in.isAnswer(err)) }
	opened, err := asked.streamer(onceContext(asked.ctx, asked.called), asked.desc, asked.cc, asked.called.Method, append(slices.Clip(asked.opts), grpc.OnFinish(done))...)
	if err != nil {
		once.Done(false)
		return opened, err
	}
	return &grpcattempt.FirstMessage{ClientStream: opened, Done: done}, nil
}

// streamOf returns a stream for what the caller asked for. Hedges have copies: when they start, the caller may have changed its
// options, its metadata and the description of the stream.
func (in *Client) streamOf(asked streamCall, m *methodRule, delay time.Duration) *stream {
	s := &stream{hedging: hedging{in: in, rule: m}, asked: asked, askedDelay: delay, opened: time.Now(), desc: *asked.desc}
	s.metadata, _ = metadata.FromOutgoingContext(asked.ctx)
	s.throttle = m.throttle(asked.called.Target)
	s.choice.Init()
	s.asked.opts, s.finish.Functions = grpcattempt.TakeFinish(slices.Clone(asked.opts))
	s.origin.Context, s.cancel = context.WithCancelCause(asked.ctx)
	k := in.Policy.Lookup(in.name(asked.ctx, asked.called))
	if delay > 0 || in.Policy.Config().InitialDelay > 0 || k != nil && k.Schedule() != nil {
		s.mayHedge, s.origin.Call = true, in.NestingMark(asked.called)
	}
	return s
}

// streamCall is what the caller of a stream passed.
type streamCall struct {
	ctx      context.Context
	desc     *grpc.StreamDesc
	cc       *grpc.ClientConn
	called   race.Called
	streamer grpc.Streamer
	opts     []grpc.CallOption
}

// stream is what the caller gets for its call. Until the first message it is the Op
// and the Gate of a race. As with any ClientStream, one goroutine may send while
// another receives.
type stream struct {
	hedging // of the goroutine that begins the race, and of the attempts

	// Written before the caller gets the stream, and not changed after it.
	asked      streamCall    // without options of OnFinish
	askedDelay time.Duration // asked for by the caller or the route; 0: none
	mayHedge   bool          // a hedge can become due
	opened     time.Time     // when the primary's stream was begun
	metadata   metadata.MD   // the caller's; nil: none
	desc       grpc.StreamDesc
	origin     grpcattempt.Origin
	cancel     context.CancelCauseFunc // ends origin

	attempts [1 + race.MaxHedges]streamAttempt
	begun    atomic.Bool // there is a race, or there will be none
	reply    any         // the caller's, for the first message; written before the race begins
	ended    sync.Once

	replyType grpcattempt.ReplyType // of reply

	delivered sync.Once // the targets of the caller's options

	// These guard themselves.
	choice grpcattempt.Choice
	sent   grpcattempt.Sent
	once   grpcattempt.Once // of a stream that turns out to be sent once
	early  grpcattempt.EarlyContext
	finish grpcattempt.Finish

	primaryDeadline grpcattempt.PrimaryDeadline // set only if there is an interceptor below
}

// streamAttempt is written by its attempt; that of the primary before the caller gets the
// stream. The winner's is read after the choice.
type streamAttempt struct {
	grpc.ClientStream
	reply   any      // a hedge's own
	deliver []func() // copy what was received to the targets of the caller's options
}

// openPrimary opens the primary's stream.
func (s *stream) openPrimary() error {
	primary, err := s.open(&s.origin, s.asked.streamer, s.asked.cc, 0)
	if err != nil {
		s.passOver(observe.DeniedNotReady)
		s.endPrimary()
		s.once.Done(false)
		return err
	}
	s.attempts[0].ClientStream = primary
	return nil
}

// open starts the stream of attempt n by the streamer, over cc.
func (s *stream) open(ctx context.Context, streamer grpc.Streamer, cc *grpc.ClientConn, n int) (grpc.ClientStream, error) {
	opts := s.asked.opts
	if cc != s.asked.cc {
		opts = grpcattempt.WithoutDefaults(opts, s.asked.cc)
	}
	opts, s.attempts[n].deliver = grpcattempt.OwnTargets(opts)
	opts = append(opts, grpc.OnFinish(func(err error) { s.onFinish(n, cc, err) }))
	desc := s.asked.desc
	if n > 0 {
		desc = &s.desc
	}
	return streamer(ctx, desc, cc, s.asked.called.Method, slices.Clip(opts)...)
}

// onFinish is called when an RPC of attempt n has ended over cc. It may be the end of the call, but what is below may also
// try again with another RPC.
func (s *stream) onFinish(n int, cc *grpc.ClientConn, err error) {
	s.finish.Ended(n, err)
	if n == 0 {
		s.passOver(observe.DeniedNotReady) // nobody has received yet, and there is nothing to receive
		s.once.Done(s.in.isAnswer(err))
	}
	s.report()
	if cc != nil && cc.GetState() == connectivity.Shutdown && s.choice.Known() && s.choice.Winner() == n {
		s.end() // the caller drops the stream, and nothing else may say so
	}
}

// report calls the functions of the caller's OnFinish once the attempt that is the call has ended.
func (s *stream) report() {
	if !s.choice.Known() {
		return
	}
	due, err := s.finish.Due(s.choice.Winner())
	if due {
		s.rule.ended(s.asked.called.Target, err)
	}
	if due && len(s.finish.Functions) > 0 {
		s.deliverTargets() // which the functions may read
		for _, f := range s.finish.Functions {
			f(err)
		}
	}
}

// passOver makes the primary the call, unless there is a race, and tells observers why. They are told of the call's end when
// it has its first message. It reports whether it has done so.
func (s *stream) passOver(reason observe.Reason) bool {
	if !s.begun.CompareAndSwap(false, true) {
		return false
	}
	s.once.Begin(s.in.beginUnhedged(s.asked.ctx, s.asked.called, reason).Done) // before another goroutine receives
	s.choose(0, s.endPrimary)
	return true
}

func (s *stream) endPrimary() { s.cancel(nil) }

// choose makes attempt n the call, unless another is. release ends its context.
func (s *stream) choose(n int, release func()) {
	s.choice.Make(n, release)
	s.sent.Close()
	s.report()
}

// chosen waits for the choice and returns its attempt.
func (s *stream) chosen() *streamAttempt { return &s.attempts[s.choice.Winner()] }

func (s *stream) SendMsg(m any) error {
	request := grpcattempt.RequestOf(m)
	if !request.Divisible() || request.IsPrepared() && s.in.options.HedgeConns != nil {
		s.sendOnce(grpcattempt.WholeRequest)
	}
	var buffers *grpcattempt.Buffers
	if s.mayHedge && !s.choice.Known() {
		buffers = &s.in.buffers
	}
	if !s.sent.Keep(request, buffers) {
		s.sendOnce(grpcattempt.WholeRequest)
	}
	return s.sentBy(s.attempts[0].SendMsg(m))
}

// sendOnce makes the primary the call because of an obstacle, unless there is a race.
func (s *stream) sendOnce(why grpcattempt.Obstacle) {
	if s.passOver(observe.DeniedBody) {
		s.in.Counters.NotHedgeable.Add(1)
		s.in.rules.tell(s.rule, s.asked.called.Method, why)
	}
}

func (s *stream) CloseSend() error { return s.sentBy(s.attempts[0].CloseSend()) }

// sentBy returns what the caller sees of an error with which the primary could not send. It
// ends the call, unless it is io.EOF, after which RecvMsg has the status. If a hedge has won,
// the error is that of a loser: the hedge has the request.
func (s *stream) sentBy(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s.passOver(observe.DeniedBody)
	if s.choice.Winner() > 0 {
		return nil
	}
	s.end()
	return err
}

// Header waits for the race if there is one, and otherwise chooses the primary.
func (s *stream) Header() (metadata.MD, error) {
	s.passOver(observe.DeniedBody)
	md, err := s.chosen().Header()
	if err != nil && err != io.EOF {
		s.end()
	}
	return md, err
}

func (s *stream) Trailer() metadata.MD {
	if !s.choice.Known() {
		return nil
	}
	return s.chosen().Trailer()
}

func (s *stream) Context() context.Context {
	if !s.choice.Known() {
		return s.early.Get(s.asked.ctx, grpcattempt.ContextOf(s.attempts[0], s.asked.ctx))
	}
	return s.chosen().Context()
}

func (s *stream) RecvMsg(m any) error {
	var err error
	if !s.begun.Load() {
		if s.replyType = grpcattempt.ReplyTypeOf(m, s.asked.opts); !s.replyType.Known() {
			s.sendOnce(grpcattempt.WholeReply)
		}
	}
	if s.begun.CompareAndSwap(false, true) {
		err = s.receiveFirst(m)
	} else {
		err = s.chosen().RecvMsg(m)
		s.once.Done(err == io.EOF || s.in.isAnswer(err))
	}
	if err != nil {
		s.end()
	}
	return err
}

// end sets the targets of the caller's options and ends the contexts. The choice is made.
func (s *stream) end() {
	s.ended.Do(func() {
		s.deliverTargets()
		s.choice.Release()
		s.early.End()
	})
}

// deliverTargets sets the targets of the caller's options. The choice is made.
func (s *stream) deliverTargets() {
	s.delivered.Do(func() {
		for _, deliver := range s.chosen().deliver {
			deliver()
		}
	})
}

// receiveFirst receives the first message, from whichever attempt has it first.
func (s *stream) receiveFirst(m any) error {
	defer s.choose(0, s.endPrimary) // if no hedge was chosen; also if the primary panics
	s.reply, s.key = m, s.in.Policy.RouteKey(s.in.name(s.asked.ctx, s.asked.called), s.rule.policy.BudgetPercent/100)
	asked, sent := time.Now(), s.sent.At()
	delays := s.plan(s.asked.ctx, s.asked.cc, s.askedDelay)
	late := !sent.IsZero() && asked.Sub(sent) > grpcattempt.Look
	if late { // the call began when the request was sent, and the message may be there
		s.Began(sent)
		s.ahead = asked.Sub(sent)
		delays = grpcattempt.Sooner(delays, asked.Sub(sent))
	}
	r := race.Race[error]{Style: race.Style[error]{Usual: s.Usual(), Watch: s.Watch(), SeverHedges: true, Call: s.origin.Call}}
	out := r.Run(s.asked.ctx, s, s, delays)
	s.detours.Settle(&s.origin.Trail)
	if late && time.Since(asked) < grpcattempt.Look {
		s.MarkLatencyUnknown()
	}
	return s.deliver(out)
}

// deliver gives the caller what the race has found, and makes its winner the call.
func (s *stream) deliver(out race.Result[error]) error {
	err := out.Value
	s.NotTaken = out.NotTaken
	s.End(err == io.EOF || s.in.isAnswer(err), out.Winner > 0, 0)
	s.in.CountOutcome(&s.Call, out.Winner)
	if out.Winner <= 0 {
		out.Attempt.Release()
		return err
	}
	s.cancel(race.ErrLost)
	if err == nil {
		grpcattempt.Publish(s.reply, s.attempts[out.Winner].reply)
	}
	s.choose(out.Winner, out.Attempt.Release)
	return err
}

// Admit decides about a hedge, which needs a request.
func (s *stream) Admit(index int) bool {
	return s.admit(index, s.asked.cc, s.sent.Any(), s.deadline())
}

// deadline returns when the timeout of the method passes, or that of an interceptor below, as far as that is known.
func (s *stream) deadline() grpcattempt.Deadline {
	return s.primaryDeadline.Earlier(grpcattempt.MethodDeadline(s.asked.cc, s.asked.called.Method, s.opened))
}

// limitHedge returns the context of a hedge that ends at the deadline of the call, and the function that releases it.
func (s *stream) limitHedge(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := s.deadline().Limit(ctx)
	if grpcattempt.Streams(s.asked.streamer) {
		return ctx, cancel
	}
	ctx, release := s.primaryDeadline.Limit(ctx)
	return ctx, func() { release(); cancel() }
}

func (s *stream) Attempt(a *race.Attempt, n int) (error, error) {
	if n > 0 {
		return s.hedge(a, n)
	}
	// The primary's stream is older than the race, and must end with its attempt.
	stop := context.AfterFunc(a, func() { s.cancel(context.Cause(a)) })
	err := s.attempts[0].RecvMsg(s.reply)
	stop()
	if !grpcattempt.Streams(s.asked.streamer) {
		s.primaryDeadline.Set(grpcattempt.ContextOf(s.attempts[0], s.asked.ctx))
	}
	return err, s.judge(a, 0, err)
}

// hedge makes attempt n on a stream of its own.
func (s *stream) hedge(a *race.Attempt, n int) (error, error) {
	cc, streamer := s.tour.Over(n, s.asked.cc), s.asked.streamer
	ctx, cancel := s.limitHedge(hedgeContext(a, s.metadata.Copy(), n))
	if cc != s.asked.cc {
		ctx, streamer = withHedgeOver(ctx, hedgeOver{s.in, cc, s.asked.called.Method}), grpc.NewClientStream
	}
	detour := s.detours.For(ctx, n, &s.origin.Trail)
	err := s.sendAgain(detour, streamer, cc, n)
	if err != nil {
		cancel() // the stream has ended; that of a winner ends with the attempt
	}
	if err != nil && detour.Refused() {
		s.tour.Refuse(a, &s.Call, n, observe.DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, s.judge(a, n, err)
}

// judge is [hedging.judge] for what attempt n has received first: a message, or the end of the stream.
func (s *stream) judge(a *race.Attempt, n int, err error) error {
	if err == io.EOF {
		err = nil
	}
	var trailer metadata.MD
	var deadline grpcattempt.Deadline
	if opened := s.attempts[n].ClientStream; err != nil && opened != nil {
		trailer, deadline = opened.Trailer(), s.deadline()
	}
	return s.hedging.judge(a, n, err, trailer, deadline)
}

// sendAgain sends the request on a stream of its own and waits for the first message.
func (s *stream) sendAgain(ctx context.Context, streamer grpc.Streamer, cc *grpc.ClientConn, n int) error {
	req, ok := s.sent.Copy()
	if !ok {
		return race.ErrLost
	}
	hedge, err := s.open(ctx, streamer, cc, n)
	me := &s.attempts[n]
	if err != nil {
		me.ClientStream = grpcattempt.Unopened(ctx, err)
		s.finish.Ended(n, err) // what is below may not say so
		return err
	}
	me.ClientStream, me.reply = hedge, s.replyType.New()
	if err := hedge.SendMsg(req); err != nil && err != io.EOF { // EOF: RecvMsg has the status
		return err
	}
	if err := hedge.CloseSend(); err != nil {
		return err
	}
	return hedge.RecvMsg(me.reply)
}
