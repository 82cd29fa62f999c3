package hedge

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/race"
)

// Stream returns an interceptor that hedges server-streaming calls until their
// first message.
//
// If the first message takes longer than usual for the target and method, the first
// RecvMsg sends the request again on another stream. The stream whose message (or
// end) comes first becomes the call, with its header, trailer and status; the others
// are cancelled, and the call does not wait for them. Latency is learned from that
// RecvMsg to the first message. A call of Header before RecvMsg, a SendMsg that fails
// and the end of the caller's context make the primary the call. Targets in call
// options are set when the stream has ended. Until the call is known, Trailer returns
// nil, and Context returns a context that ends with the call, whichever it will be.
//
// What [Interceptor.Unary] says of methods and statuses holds here as well. Client-
// and bidirectional-streaming calls are sent once, as they are.
func (in *Interceptor) Stream() grpc.StreamClientInterceptor {
	in.mustBeMade()
	return in.interceptStream
}

func (in *Interceptor) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	asked := streamCall{ctx, desc, cc, method, streamer, opts}
	m, delay, reason := in.decide(ctx, method)
	if reason == engine.None && (desc.ClientStreams || !desc.ServerStreams) {
		in.stats.NotHedgeable.Add(1)
		reason = DeniedBody
	}
	if reason != engine.None {
		return in.openOnce(asked, reason)
	}
	s := in.streamOf(asked, m, delay)
	if err := s.openPrimary(); err != nil {
		return nil, err
	}
	return s, nil
}

// openOnce opens the stream of a call without hedges.
func (in *Interceptor) openOnce(asked streamCall, reason Reason) (grpc.ClientStream, error) {
	told := in.beginUnhedged(asked.ctx, asked.cc, asked.method, reason)
	opened, err := asked.streamer(nestedContext(asked.ctx), asked.desc, asked.cc, asked.method, asked.opts...)
	told.Done(err == nil)
	return opened, err
}

// streamOf returns a stream for what the caller asked for, which hedges read when the caller
// has its options back.
func (in *Interceptor) streamOf(asked streamCall, m *methodRule, delay time.Duration) *stream {
	s := &stream{hedging: hedging{in: in}, asked: asked, share: m.policy.BudgetPercent / 100, askedDelay: delay}
	s.choice.Init()
	s.asked.opts, s.finish.Functions = grpcattempt.TakeFinish(slices.Clone(asked.opts))
	s.origin.Context, s.cancel = context.WithCancelCause(asked.ctx)
	return s
}

// streamCall is what the caller of a stream passed.
type streamCall struct {
	ctx      context.Context
	desc     *grpc.StreamDesc
	cc       *grpc.ClientConn
	method   string
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
	share      float64       // of the route's calls, see [Policy.BudgetPercent]
	askedDelay time.Duration // asked for by the caller or the route; 0: none
	origin     grpcattempt.Origin
	cancel     context.CancelCauseFunc // ends origin

	attempts [1 + race.MaxHedges]streamAttempt
	begun    atomic.Bool // there is a race, or there will be none
	reply    any         // the caller's, for the first message; written before the race begins
	ended    sync.Once

	// These guard themselves.
	choice grpcattempt.Choice
	sent   grpcattempt.Sent
	early  grpcattempt.EarlyContext
	finish grpcattempt.Finish
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
	primary, err := s.open(&s.origin, s.asked.cc, 0)
	if err != nil {
		s.choose(0, func() {})
		s.endPrimary()
		s.in.beginUnhedged(s.asked.ctx, s.asked.cc, s.asked.method, DeniedNotReady).Done(false)
		return err
	}
	s.attempts[0].ClientStream = primary
	return nil
}

// open starts the stream of attempt n.
func (s *stream) open(ctx context.Context, cc *grpc.ClientConn, n int) (grpc.ClientStream, error) {
	opts, deliver := grpcattempt.OwnTargets(s.asked.opts)
	s.attempts[n].deliver = deliver
	if len(s.finish.Functions) > 0 {
		opts = append(opts, grpc.OnFinish(func(err error) { s.onFinish(n, err) }))
	}
	return s.asked.streamer(ctx, s.asked.desc, cc, s.asked.method, slices.Clip(opts)...)
}

// onFinish is called when attempt n has ended, which may be the end of the call.
func (s *stream) onFinish(n int, err error) {
	s.finish.Ended(n, err)
	if n == 0 {
		s.skipRace() // nobody has received yet, and there is nothing to receive
	}
	s.report()
}

// report calls the functions of the caller's OnFinish once the call has ended.
func (s *stream) report() {
	if !s.choice.Known() {
		return
	}
	if due, err := s.finish.Due(s.choice.Winner()); due {
		s.end() // sets the targets, which the functions may read
		for _, f := range s.finish.Functions {
			f(err)
		}
	}
}

// skipRace makes the primary the call, unless there is a race. It reports whether it has done so.
func (s *stream) skipRace() bool {
	if !s.begun.CompareAndSwap(false, true) {
		return false
	}
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
	s.sent.Keep(m)
	return s.sentBy(s.attempts[0].SendMsg(m))
}

func (s *stream) CloseSend() error { return s.sentBy(s.attempts[0].CloseSend()) }

// sentBy returns what the caller sees of an error with which the primary could not send. It
// ends the call, unless it is io.EOF, after which RecvMsg has the status. If a hedge has won,
// the error is that of a loser: the hedge has the request.
func (s *stream) sentBy(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s.skipRace()
	if s.choice.Winner() > 0 {
		return nil
	}
	s.end()
	return err
}

// Header waits for the race if there is one, and otherwise chooses the primary.
func (s *stream) Header() (metadata.MD, error) {
	var told engine.Unhedged
	if s.skipRace() {
		told = s.in.beginUnhedged(s.asked.ctx, s.asked.cc, s.asked.method, DeniedBody)
	}
	md, err := s.chosen().Header()
	told.Done(err == nil)
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
		return s.early.Get(s.asked.ctx)
	}
	return s.chosen().Context()
}

func (s *stream) RecvMsg(m any) error {
	var err error
	if s.begun.CompareAndSwap(false, true) {
		err = s.receiveFirst(m)
	} else {
		err = s.chosen().RecvMsg(m)
	}
	if err != nil {
		s.end()
	}
	return err
}

// end sets the targets of the caller's options and ends the contexts. The choice is made.
func (s *stream) end() {
	s.ended.Do(func() {
		for _, deliver := range s.chosen().deliver {
			deliver()
		}
		s.choice.Release()
		s.early.End()
	})
}

// receiveFirst receives the first message, from whichever attempt has it first.
func (s *stream) receiveFirst(m any) error {
	defer s.choose(0, s.endPrimary) // if no hedge was chosen; also if the primary panics
	s.reply = m
	s.key = s.in.engine.RouteKey(s.in.name(s.asked.ctx, s.asked.cc, s.asked.method), s.share)
	delays := s.plan(s.asked.ctx, m, s.askedDelay)
	var r race.Race[error]
	out := r.Run(s.asked.ctx, s, s, delays, race.Style{Watch: s.Watch()})
	return s.deliver(out)
}

// deliver gives the caller what the race has found, and makes its winner the call.
func (s *stream) deliver(out race.Result[error]) error {
	err := out.Value
	s.End(err == io.EOF || isAnswer(err), out.Winner > 0, 0)
	s.in.tally(&s.Call, out.Winner)
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

// Admit refuses hedges that could not be made or would only queue.
func (s *stream) Admit(index int) bool {
	denial := s.denial(s.asked.cc)
	if denial == engine.None && !s.sent.Any() {
		denial = DeniedNotReady
	}
	return s.AdmitUnless(index, denial)
}

func (s *stream) Attempt(a *race.Attempt, n int) (error, error) {
	if n > 0 {
		return s.hedge(a, n)
	}
	// The primary's stream is older than the race, and must end with its attempt.
	stop := context.AfterFunc(a, func() { s.cancel(context.Cause(a)) })
	err := s.attempts[0].RecvMsg(s.reply)
	stop()
	return err, s.judge(a, 0, err)
}

// hedge makes attempt n on a stream of its own.
func (s *stream) hedge(a *race.Attempt, n int) (error, error) {
	detour := s.detours.For(hedgeContext(a, n), n, s.asked.method, &s.origin.Trail)
	err := s.sendAgain(detour, n)
	if err != nil && detour.Refused() {
		s.Refuse(DeniedSameBackend)
		return err, race.ErrRefused
	}
	return err, s.judge(a, n, err)
}

// judge is [hedging.judge] for what attempt n has received first: a message, or the end of the stream.
func (s *stream) judge(a *race.Attempt, n int, err error) error {
	if err == io.EOF {
		return nil
	}
	var trailer metadata.MD
	if opened := s.attempts[n].ClientStream; err != nil && opened != nil {
		trailer = opened.Trailer()
	}
	return s.hedging.judge(a, n, err, trailer)
}

// sendAgain sends the request on a stream of its own and waits for the first message.
func (s *stream) sendAgain(ctx context.Context, n int) error {
	req, ok := s.sent.Copy()
	if !ok {
		return race.ErrLost
	}
	hedge, err := s.open(ctx, s.in.hedgeConn(s.asked.cc), n)
	if err != nil {
		return err
	}
	me := &s.attempts[n]
	me.ClientStream, me.reply = hedge, s.replyType.New()
	if err := hedge.SendMsg(req); err != nil && err != io.EOF { // EOF: RecvMsg has the status
		return err
	}
	if err := hedge.CloseSend(); err != nil {
		return err
	}
	return hedge.RecvMsg(me.reply)
}
