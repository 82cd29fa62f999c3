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

// InterceptStream is a [grpc.StreamClientInterceptor]. It hedges server streams until their first message arrives.
// Other streams are not hedged.
func (in *Client) InterceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o := race.OverridesFrom(ctx)
	if o.Hedge > 0 && isHedgeOnConn(ctx, hedgeOnConn{in, cc, method}) {
		return streamer(ctx, desc, cc, method, opts...)
	}
	args := streamArgs{ctx, *desc, cc, callTargetOf(cc, method), streamer, opts}
	m, delay, reason := in.checkEligibility(o, cc, args.callTarget, func(*methodRule) grpcattempt.Obstacle {
		switch {
		case desc.ClientStreams || !desc.ServerStreams:
			return grpcattempt.SeveralMessages
		case !grpcattempt.AreOptionsCloneable(opts):
			return grpcattempt.UnknownOption
		}
		return grpcattempt.None // RecvMsg and SendMsg may find further obstacles
	})
	if reason != policy.None {
		return in.openWithoutHedges(args, desc, m, reason)
	}
	s := in.newStream(args, m, delay)
	s.IsRetry = o.Retry
	if err := s.openPrimary(desc); err != nil {
		return nil, err
	}
	return s, nil
}

// openWithoutHedges opens the stream of a call that is not hedged, for the given reason. It reports the call to
// observers.
func (in *Client) openWithoutHedges(args streamArgs, desc *grpc.StreamDesc, m *methodRule, reason observe.Reason) (grpc.ClientStream, error) {
	if m.countsForThrottling() {
		args.opts = append(slices.Clip(args.opts), grpc.OnFinish(func(err error) { m.recordSuccess(args.callTarget.Target, err) }))
	}
	if !in.Policy.HasObservers() {
		return args.streamer(contextWithoutHedges(args.ctx, args.callTarget), desc, args.cc, args.callTarget.Method, args.opts...)
	}
	var once grpcattempt.UnhedgedReport
	once.Begin(in.beginUnhedged(args.ctx, args.callTarget, reason).End)
	done := func(err error) { once.Done(err == io.EOF || in.isAnswer(err)) }
	opened, err := args.streamer(contextWithoutHedges(args.ctx, args.callTarget), desc, args.cc, args.callTarget.Method, append(slices.Clip(args.opts), grpc.OnFinish(done))...)
	if err != nil {
		once.Done(false)
		return opened, err
	}
	return &grpcattempt.RecvObserver{ClientStream: opened, Done: done}, nil
}

// newStream returns a stream whose primary is not open yet. If delay is not 0, it replaces the learned hedge delays.
// newStream copies the options, metadata and description for hedges, because the caller may change them.
func (in *Client) newStream(args streamArgs, m *methodRule, delay time.Duration) *stream {
	s := &stream{hedgedCall: hedgedCall{client: in, rule: m}, args: args, fixedDelay: delay, startTime: time.Now()}
	s.metadata, _ = metadata.FromOutgoingContext(args.ctx)
	s.throttle = m.throttleOf(args.callTarget.Target)
	if !grpcattempt.IsGRPCStreamer(args.streamer) {
		s.primaryDeadline = new(grpcattempt.PrimaryDeadline)
	}
	s.choice.Init()
	s.args.opts, s.finishNotifier.Functions = grpcattempt.SplitFinishFuncs(slices.Clone(args.opts))
	k := in.Policy.Lookup(in.keyName(args.ctx, args.callTarget)) // may panic, so there is no context to end yet
	s.primary.Context, s.cancel = context.WithCancelCause(args.ctx)
	if delay > 0 || in.Policy.Config().InitialDelay > 0 || k != nil && k.Schedule() != nil {
		s.mayHedge = true
		if in.MarksNesting() {
			s.primary.Call = args.callTarget
		}
	}
	return s
}

// A streamArgs holds the arguments with which the caller opened a stream.
type streamArgs struct {
	ctx        context.Context
	desc       grpc.StreamDesc // a copy, for hedges
	cc         *grpc.ClientConn
	callTarget race.CallTarget
	streamer   grpc.Streamer
	opts       []grpc.CallOption
}

// A stream is the [grpc.ClientStream] that the caller gets. Until the first message, it is a race between attempts, and
// each attempt has its own stream. It implements [race.Op]. After that, it forwards all calls to the winner's stream.
//
// One goroutine may send while another goroutine receives.
type stream struct {
	hedgedCall // used by the goroutine that begins the race, and by the attempts

	// Written before the caller gets the stream, and not changed afterwards.
	args       streamArgs    // without OnFinish options
	fixedDelay time.Duration // fixed hedge delay from the caller's context or the route; 0 means that the learned delays apply
	mayHedge   bool          // a hedge can become due
	startTime  time.Time     // start of the primary
	metadata   metadata.MD   // outgoing metadata of the caller; nil if there are none
	primary    grpcattempt.StreamPrimaryContext
	cancel     context.CancelCauseFunc // ends the primary's context

	attempts [1 + race.MaxHedges]streamAttempt
	begun    atomic.Bool // the race has begun, or the primary was chosen without a race
	reply    any         // the caller's message for the first RecvMsg; set before the race begins

	replyType grpcattempt.ReplyType // type of reply

	delivered sync.Once  // makes finishStream copy the outputs once
	copying   sync.Mutex // held while the outputs are copied to the caller's variables

	// These types are safe for concurrent use.
	choice         grpcattempt.WinnerChoice
	sentRequest    grpcattempt.SentRequest
	unhedged       grpcattempt.UnhedgedReport // reports a stream without hedges to observers
	earlyContext   grpcattempt.EarlyContext
	finishNotifier grpcattempt.FinishNotifier

	primaryDeadline *grpcattempt.PrimaryDeadline // nil if there is no later interceptor in the chain
}

// A streamAttempt holds the stream of one attempt. The element of the primary is written before the caller gets the
// stream. The element of a hedge is written only by the hedge's goroutine. After an attempt is chosen, only the
// winner's element is read.
type streamAttempt struct {
	grpc.ClientStream
	reply   any      // first message of a hedge
	deliver []func() // functions that copy header, trailer and peer to the caller's variables
}

// openPrimary opens the primary's stream. If that fails, the call ends, and openPrimary returns the error.
func (s *stream) openPrimary(desc *grpc.StreamDesc) error {
	opened := false
	defer func() {
		if !opened { // also if a later interceptor in the chain panics
			s.endPrimary()
		}
	}()
	primary, err := s.openStream(&s.primary, desc, s.args.streamer, s.args.cc, 0)
	if err != nil {
		s.choosePrimary(observe.DeniedNotReady)
		s.unhedged.Done(false)
		return err
	}
	s.attempts[0].ClientStream, opened = primary, true
	return nil
}

// openStream opens the stream of attempt n over cc, with copies of the caller's call options.
func (s *stream) openStream(ctx context.Context, desc *grpc.StreamDesc, streamer grpc.Streamer, cc *grpc.ClientConn, n int) (grpc.ClientStream, error) {
	opts := s.args.opts
	if cc != s.args.cc {
		opts = grpcattempt.WithoutDefaultOptions(opts, s.args.cc)
	}
	opts, s.attempts[n].deliver = grpcattempt.CloneOptions(opts)
	opts = append(opts, grpc.OnFinish(func(err error) { s.onFinish(n, cc, err) }))
	return streamer(ctx, desc, cc, s.args.callTarget.Method, slices.Clip(opts)...)
}

// onFinish records that an RPC of attempt n over cc has ended with the status err. A later interceptor in the chain may
// start several RPCs for an attempt.
func (s *stream) onFinish(n int, cc *grpc.ClientConn, err error) {
	s.finishNotifier.RecordEnd(n, err)
	if n == 0 {
		s.choosePrimary(observe.DeniedNotReady) // RecvMsg was not called yet, and has no message to wait for
		s.unhedged.Done(s.client.isAnswer(err))
	}
	s.callFinishFuncs()
	if cc != nil && cc.GetState() == connectivity.Shutdown && s.choice.HasWinner() && s.choice.Winner() == n {
		s.finishStream() // a stream over a closed connection may get no further call
	}
}

// callFinishFuncs calls the functions of the caller's [grpc.OnFinish] options if the winner is chosen and has ended. If a
// later interceptor in the chain starts several RPCs for the winner, it calls them for each, as without hedging.
func (s *stream) callFinishFuncs() {
	if !s.choice.HasWinner() {
		return
	}
	due, err := s.finishNotifier.ClaimResult(s.choice.Winner())
	if due {
		s.rule.recordSuccess(s.args.callTarget.Target, err)
	}
	if due && len(s.finishNotifier.Functions) > 0 {
		s.copyOutputs() // the functions may read the outputs
		for _, f := range s.finishNotifier.Functions {
			f(err)
		}
	}
}

// choosePrimary makes the primary's stream the caller's stream, so that the call has no hedges. It returns false if the
// race has already begun. Observers get the reason now, and later the end of the call.
func (s *stream) choosePrimary(reason observe.Reason) bool {
	if !s.begun.CompareAndSwap(false, true) {
		return false
	}
	s.unhedged.Begin(s.client.beginUnhedged(s.args.ctx, s.args.callTarget, reason).End) // before another goroutine receives
	s.chooseAttempt(0, s.endPrimary)
	return true
}

// endPrimary ends the context of the primary, which also ends the primary's stream.
func (s *stream) endPrimary() { s.cancel(nil) }

// chooseAttempt makes the stream of attempt n the caller's stream, unless an attempt is already chosen. The function
// release must end the context of attempt n.
func (s *stream) chooseAttempt(n int, release func()) {
	s.choice.Choose(n, release)
	s.sentRequest.Close()
	s.callFinishFuncs()
}

// chosenAttempt waits until an attempt is chosen, and returns that attempt.
func (s *stream) chosenAttempt() *streamAttempt { return &s.attempts[s.choice.Winner()] }

// SendMsg implements [grpc.ClientStream]. It sends m on the primary's stream and keeps a copy of m for hedges.
func (s *stream) SendMsg(m any) error {
	request := grpcattempt.RequestOf(m)
	if !request.IsCloneable() || request.IsPrepared() && s.client.options.HedgeConns != nil {
		s.disableHedging(grpcattempt.UncloneableRequest)
	}
	var buffers *grpcattempt.Buffers
	if s.mayHedge && !s.choice.HasWinner() {
		buffers = &s.client.buffers
	}
	if !s.sentRequest.StoreMessage(request, buffers) {
		s.disableHedging(grpcattempt.UncloneableRequest)
	}
	return s.handleSendError(s.attempts[0].SendMsg(m))
}

// disableHedging prevents hedges of the call because of the given obstacle: it makes the primary's stream the caller's
// stream. It does nothing if the race has already begun.
func (s *stream) disableHedging(why grpcattempt.Obstacle) {
	if s.choosePrimary(observe.DeniedBody) {
		s.client.Counters.NotHedgeable.Add(1)
		s.client.rules.logObstacle(s.rule, s.args.callTarget.Method, why)
	}
}

// CloseSend implements [grpc.ClientStream]: it closes the sending side of the primary's stream. Hedges close theirs
// themselves.
func (s *stream) CloseSend() error { return s.handleSendError(s.attempts[0].CloseSend()) }

// handleSendError returns the error for the caller after sending on the primary's stream has failed with err. If a
// hedge has won, the result is nil, because the hedge has sent the request. It returns nil and io.EOF unchanged: after
// io.EOF, RecvMsg returns the status.
func (s *stream) handleSendError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s.choosePrimary(observe.DeniedBody)
	if s.choice.Winner() > 0 {
		return nil
	}
	s.finishStream()
	return err
}

// Header implements [grpc.ClientStream]: it returns the header of the winner. It waits for the race. If no race has
// begun, it chooses the primary, so that the call has no hedges.
func (s *stream) Header() (metadata.MD, error) {
	s.choosePrimary(observe.DeniedBody)
	md, err := s.chosenAttempt().Header()
	if err != nil && err != io.EOF {
		s.finishStream()
	}
	return md, err
}

// Trailer implements [grpc.ClientStream]: it returns the trailer of the winner, or nil if there is no winner yet.
func (s *stream) Trailer() metadata.MD {
	if !s.choice.HasWinner() {
		return nil
	}
	return s.chosenAttempt().Trailer()
}

// Context implements [grpc.ClientStream]. Before an attempt is chosen, it returns a context with the values of the
// primary's stream. After that, it returns the context of the winner's stream.
func (s *stream) Context() context.Context {
	if !s.choice.HasWinner() {
		return s.earlyContext.Get(s.args.ctx, grpcattempt.ContextOf(s.attempts[0], s.args.ctx))
	}
	return s.chosenAttempt().Context()
}

// RecvMsg implements [grpc.ClientStream]. The first call runs the race between the attempts. Later calls receive from
// the winner's stream.
func (s *stream) RecvMsg(m any) error {
	var err error
	if !s.begun.Load() {
		if s.replyType = grpcattempt.ReplyTypeOf(m, s.args.opts); !s.replyType.IsKnown() {
			s.disableHedging(grpcattempt.UncloneableReply)
		}
	}
	if s.begun.CompareAndSwap(false, true) {
		err = s.receiveFirst(m)
	} else {
		err = s.chosenAttempt().RecvMsg(m)
		s.unhedged.Done(err == io.EOF || s.client.isAnswer(err))
	}
	if err != nil {
		s.finishStream()
	}
	return err
}

// finishStream copies header, trailer and peer to the caller's variables, and ends the contexts of the stream. It must
// only be called after an attempt was chosen. Further calls have no effect.
func (s *stream) finishStream() {
	s.delivered.Do(s.copyOutputs)
	s.choice.ReleaseWinner()
	s.earlyContext.End()
}

// copyOutputs copies the winner's header, trailer and peer to the caller's variables. It must only be called after an
// attempt was chosen.
func (s *stream) copyOutputs() {
	s.copying.Lock()
	defer s.copying.Unlock()
	for _, deliver := range s.chosenAttempt().deliver {
		deliver()
	}
}

// receiveFirst runs the race for the first message and stores the message in m. It returns the result of the winner's
// RecvMsg.
func (s *stream) receiveFirst(m any) error {
	defer s.chooseAttempt(0, s.endPrimary) // if no hedge was chosen; also if the primary panics
	s.reply, s.Key = m, s.client.Policy.RouteKey(s.client.keyName(s.args.ctx, s.args.callTarget), s.rule.policy.BudgetPercent/100)
	receiving, sent := time.Now(), s.sentRequest.SentAt()
	delays := s.beginCall(s.args.ctx, s.args.cc, s.fixedDelay)
	late := !sent.IsZero() && receiving.Sub(sent) > grpcattempt.ReceiveTime
	if late { // the call began when the request was sent, and the message may have arrived
		s.SetStart(sent)
		delays = grpcattempt.RemainingDelays(delays, receiving.Sub(sent))
	}
	var r struct { // in one allocation
		race.Race[error]
		schedule grpcattempt.Schedule
	}
	r.Style = race.Options[error]{Observer: s.AttemptObserver(), Detach: race.DetachHedges, Primary: &race.Attempt{Call: s.primary.Call}}
	r.schedule.SetDelays(delays, s.P99Latency())
	out := r.Run(s.args.ctx, s, &r.schedule)
	s.hedgePicks.ReleaseUnused(&s.primary.PrimaryPick)
	return s.deliverFirst(out, late && time.Since(receiving) < grpcattempt.ReceiveTime)
}

// deliverFirst copies the winner's first message to the caller, records the outcome of the call, and chooses the
// winner. The caller must set early to true if the message may have arrived before RecvMsg was called. The latency of
// the call is then unknown.
func (s *stream) deliverFirst(out race.Result[error], early bool) error {
	err := out.Value
	s.client.EndCall(&s.Call, policy.Outcome{Answered: err == io.EOF || s.client.isAnswer(err), Winner: out.Winner, AnswersNotTaken: out.AnswersNotTaken, LatencyUnknown: early})
	if out.Winner <= 0 {
		out.Attempt.Release()
		return err
	}
	s.cancel(race.ErrLost)
	if err == nil {
		grpcattempt.CopyReply(s.reply, s.attempts[out.Winner].reply)
	}
	s.chooseAttempt(out.Winner, out.Attempt.Release)
	return err
}

// Admit implements [race.Op]: it decides whether the hedge with the given index in the hedge schedule starts.
func (s *stream) Admit(index int) bool {
	return s.admitHedge(index, s.args.cc, s.sentRequest.HasMessage(), s.callDeadline())
}

// callDeadline returns the earlier of two deadlines of the call. The first follows from the timeout of the method. The
// second was set by a later interceptor in the chain; it may not be known yet.
func (s *stream) callDeadline() grpcattempt.Deadline {
	deadline := grpcattempt.MethodDeadline(s.args.cc, s.args.callTarget.Method, s.startTime, s.primaryDeadline != nil)
	if s.primaryDeadline != nil {
		deadline = s.primaryDeadline.Earlier(deadline)
	}
	return deadline
}

// withCallDeadline returns a child of ctx, for a hedge, that ends at the deadline of the call. The caller must call the
// returned function or cancel ctx, to release resources.
func (s *stream) withCallDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := s.callDeadline().LimitContext(ctx)
	if s.primaryDeadline == nil {
		return ctx, cancel
	}
	ctx, release := s.primaryDeadline.LimitContext(ctx)
	return ctx, func() { release(); cancel() }
}

// Attempt implements [race.Op]. It makes attempt n and waits for the first message of its stream. The primary's stream
// is already open. The first result is the error of RecvMsg. By the second, the race decides whether the attempt has
// succeeded.
func (s *stream) Attempt(a *race.Attempt, n int) (error, error) {
	if n > 0 {
		return s.sendHedge(a, n)
	}
	// The stream of the primary is older than the race, and ends with the attempt.
	stop := context.AfterFunc(a, func() {
		if s.args.ctx.Err() == nil { // otherwise the caller's context ends the primary, with an error of its own
			s.cancel(context.Cause(a))
		}
	})
	err := s.attempts[0].RecvMsg(s.reply)
	stop()
	if s.primaryDeadline != nil {
		s.primaryDeadline.Set(grpcattempt.ContextOf(s.attempts[0], s.args.ctx))
	}
	return err, s.classifyAttempt(a, 0, err)
}

// sendHedge makes attempt n, a hedge, on its own stream. The first result is the error of the stream. The second tells
// the race how the attempt ended.
func (s *stream) sendHedge(a *race.Attempt, n int) (error, error) {
	cc, streamer := s.selection.Attempt(n).Conn(s.args.cc), s.args.streamer
	ctx, cancel := s.withCallDeadline(hedgeContext(a, s.metadata.Copy(), n))
	if cc != s.args.cc {
		ctx, streamer = withHedgeOnConn(ctx, hedgeOnConn{s.client, cc, s.args.callTarget.Method}), grpc.NewClientStream
	}
	pick := s.hedgePicks.NewContext(ctx, n, &s.primary.PrimaryPick)
	err := s.sendRequestAgain(pick, streamer, cc, n)
	if err != nil {
		cancel() // the stream has ended; a winner's stream ends with its attempt
	}
	if err != nil && pick.IsRefused() {
		s.selection.Withdraw(a, &s.Call, n, observe.DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, s.classifyAttempt(a, n, err)
}

// classifyAttempt returns the error by which the race decides whether attempt n has succeeded. It also records pushback
// and the health of the connection. The argument err is the result of the first RecvMsg; io.EOF counts as a success.
func (s *stream) classifyAttempt(a *race.Attempt, n int, err error) error {
	if err == io.EOF {
		err = nil
	}
	var trailer metadata.MD
	var deadline grpcattempt.Deadline
	if opened := s.attempts[n].ClientStream; err != nil && opened != nil {
		trailer, deadline = opened.Trailer(), s.callDeadline()
	}
	return s.hedgedCall.classifyAttempt(a, n, err, trailer, deadline)
}

// sendRequestAgain opens the stream of hedge n over cc, sends a copy of the request, and waits for the first message.
// It returns the first error of these steps.
func (s *stream) sendRequestAgain(ctx context.Context, streamer grpc.Streamer, cc *grpc.ClientConn, n int) error {
	req, ok := s.sentRequest.CopyMessage()
	if !ok {
		return race.ErrLost
	}
	hedge, err := s.openStream(ctx, &s.args.desc, streamer, cc, n)
	me := &s.attempts[n]
	if err != nil {
		me.ClientStream = grpcattempt.NewFailedStream(ctx, err)
		s.finishNotifier.RecordEnd(n, err) // a later interceptor may not call the OnFinish function
		return err
	}
	me.ClientStream, me.reply = hedge, s.replyType.NewReply()
	if err := hedge.SendMsg(req); err != nil && err != io.EOF { // EOF: RecvMsg has the status
		return err
	}
	if err := hedge.CloseSend(); err != nil {
		return err
	}
	return hedge.RecvMsg(me.reply)
}
