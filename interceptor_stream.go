package hedge

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/elsewhere"
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
	o, m, reason := in.decide(ctx, method)
	if reason == engine.None && (desc.ClientStreams || !desc.ServerStreams) {
		in.stats.NotHedgeable.Add(1)
		reason = DeniedBody
	}
	if reason != engine.None {
		p := in.unhedged(ctx, cc, method, reason)
		opened, err := streamer(nestedContext(ctx), desc, cc, method, opts...)
		p.Done(err == nil)
		return opened, err
	}
	st := &stream{in: in, ctx: ctx, desc: desc, cc: cc, fullMethod: method, streamer: streamer, policy: m.policy, decided: make(chan struct{})}
	st.policy.Delay = cmp.Or(o.Delay, m.policy.Delay)
	st.opts, st.finish = grpcattempt.TakeFinish(slices.Clone(opts)) // hedges need them when the caller has them back
	primaryCtx, cancel := context.WithCancelCause(ctx)
	st.origin.Context, st.cancel = primaryCtx, cancel
	primary, err := st.open(&st.origin, cc, 0)
	if err != nil {
		st.choose(0, func() {})
		cancel(nil)
		in.unhedged(ctx, cc, method, DeniedNotReady).Done(false)
		return nil, err
	}
	st.attempts[0].ClientStream = primary
	return st, nil
}

// stream is what the caller gets for its call. Until the first message it is the Op
// and the Gate of a race. As with any ClientStream, one goroutine may send while
// another receives.
type stream struct {
	in         *Interceptor
	ctx        context.Context
	desc       *grpc.StreamDesc
	cc         *grpc.ClientConn
	fullMethod string
	streamer   grpc.Streamer
	policy     Policy
	opts       []grpc.CallOption
	finish     []func(error)
	origin     grpcattempt.Origin
	cancel     context.CancelCauseFunc
	detours    elsewhere.Detours

	engine.Call
	first     atomic.Bool // the header or the first message was asked for
	key       *engine.Key
	reply     any // for the first message
	replyType grpcattempt.ReplyType

	attempts [1 + race.MaxHedges]struct {
		grpc.ClientStream
		reply   any
		deliver []func()
	}

	decide  sync.Once
	decided chan struct{} // closed when winner is known
	winner  int
	release func() // ends the winner's context
	ended   sync.Once

	mu       sync.Mutex // guards the fields below
	req      any        // what was sent
	finished [1 + race.MaxHedges]*error
	reported bool               // finish was called
	barred   bool               // a server has pushed back: no more hedges of this call
	over     bool               // end was called
	early    context.Context    // what Context returned before the call was known; nil: it was not asked
	endEarly context.CancelFunc // ends early
}

// open starts the stream of attempt n.
func (s *stream) open(ctx context.Context, cc *grpc.ClientConn, n int) (grpc.ClientStream, error) {
	opts, deliver := grpcattempt.OwnTargets(s.opts)
	s.attempts[n].deliver = deliver
	if len(s.finish) > 0 {
		opts = append(opts, grpc.OnFinish(func(err error) { s.onFinish(n, err) }))
	}
	return s.streamer(ctx, s.desc, cc, s.fullMethod, slices.Clip(opts)...)
}

// onFinish is called when attempt n has ended, which may be the end of the call.
func (s *stream) onFinish(n int, err error) {
	s.mu.Lock()
	s.finished[n] = &err
	s.mu.Unlock()
	if n == 0 {
		s.giveUp() // nobody has received yet, and there is nothing to receive
	}
	s.report()
}

// giveUp makes the primary the call if there is no race yet.
func (s *stream) giveUp() {
	if s.first.CompareAndSwap(false, true) {
		s.choose(0, func() { s.cancel(nil) })
	}
}

// report calls the functions of the caller's OnFinish once the call has ended.
func (s *stream) report() {
	select {
	case <-s.decided:
	default:
		return
	}
	s.mu.Lock()
	err := s.finished[s.winner]
	now := err != nil && !s.reported
	s.reported = s.reported || now
	s.mu.Unlock()
	if now {
		s.end() // sets the targets, which the functions may read
		for _, f := range s.finish {
			f(*err)
		}
	}
}

// choose makes attempt n the call. release ends its context.
func (s *stream) choose(n int, release func()) {
	s.decide.Do(func() {
		s.winner, s.release = n, release
		close(s.decided)
	})
	s.report()
}

// chosen waits for the choice and returns its stream.
func (s *stream) chosen() grpc.ClientStream {
	<-s.decided
	return s.attempts[s.winner]
}

func (s *stream) SendMsg(m any) error {
	s.mu.Lock()
	s.req = m // grpc forbids changing it after SendMsg
	s.mu.Unlock()
	return s.sent(s.attempts[0].SendMsg(m))
}

func (s *stream) CloseSend() error { return s.sent(s.attempts[0].CloseSend()) }

// sent ends a call that an error of the primary ends. After io.EOF, RecvMsg has the
// status. If a hedge has won, the error is that of a loser: the hedge has the request.
func (s *stream) sent(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s.giveUp()
	if <-s.decided; s.winner > 0 {
		return nil
	}
	s.end()
	return err
}

// Header waits for the race if there is one, and otherwise chooses the primary.
func (s *stream) Header() (metadata.MD, error) {
	var p engine.Unhedged
	if s.first.CompareAndSwap(false, true) {
		s.choose(0, func() { s.cancel(nil) })
		p = s.in.unhedged(s.ctx, s.cc, s.fullMethod, DeniedBody)
	}
	md, err := s.chosen().Header()
	p.Done(err == nil)
	if err != nil && err != io.EOF {
		s.end()
	}
	return md, err
}

func (s *stream) Trailer() metadata.MD {
	select {
	case <-s.decided:
		return s.chosen().Trailer()
	default:
		return nil
	}
}

func (s *stream) Context() context.Context {
	select {
	case <-s.decided:
		return s.chosen().Context()
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.early == nil {
		s.early, s.endEarly = context.WithCancel(s.ctx)
		if s.over {
			s.endEarly()
		}
	}
	return s.early
}

func (s *stream) RecvMsg(m any) error {
	var err error
	if s.first.CompareAndSwap(false, true) {
		err = s.race(m)
	} else {
		err = s.chosen().RecvMsg(m)
	}
	if err != nil {
		s.end()
	}
	return err
}

// end sets the targets of the caller's options and ends the contexts. The call is known.
func (s *stream) end() {
	s.ended.Do(func() {
		for _, deliver := range s.attempts[s.winner].deliver {
			deliver()
		}
		s.release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = true
		if s.early != nil {
			s.endEarly()
		}
	})
}

// race receives the first message, from whichever attempt has it first.
func (s *stream) race(m any) error {
	defer s.choose(0, func() { s.cancel(nil) }) // if no hedge was chosen; also if the primary panics
	s.reply = m
	s.key = s.in.engine.RouteKey(s.in.name(s.ctx, s.cc, s.fullMethod), s.policy.BudgetPercent/100)
	plan := s.Begin(s.ctx, s.key, s.policy.Delay)
	var delays []time.Duration
	if plan == nil {
		s.in.stats.WarmupRequests.Add(1)
	} else {
		delays, s.replyType = plan.Delays, grpcattempt.ReplyTypeOf(m)
	}
	var r race.Race[error]
	out := r.Run(s.ctx, s, s, delays, race.Style{Watch: s.Watch()})
	err := out.Value
	s.End(err == io.EOF || answer(err), out.Winner > 0, 0)
	s.in.tally(&s.Call, out.Winner)
	if out.Winner > 0 {
		s.cancel(race.ErrLost)
		if err == nil {
			grpcattempt.Publish(m, s.attempts[out.Winner].reply)
		}
		s.choose(out.Winner, out.Attempt.Release)
		return err
	}
	out.Attempt.Release()
	return err
}

// Admit refuses hedges that could not be made or would only queue.
func (s *stream) Admit(index int) bool {
	denial := engine.None
	s.mu.Lock()
	barred, sent := s.barred, s.req != nil
	s.mu.Unlock()
	switch conn := s.in.hedgeConn(s.cc); {
	case barred:
		denial = DeniedPaused
	case conn != nil && !ready(conn), !sent, !s.replyType.Known():
		denial = DeniedNotReady
	}
	return s.AdmitUnless(index, denial)
}

func (s *stream) Attempt(a *race.Attempt, n int) (error, error) {
	var err error
	if n == 0 {
		// The primary's stream is older than the race, and must end with its attempt.
		stop := context.AfterFunc(a, func() { s.cancel(context.Cause(a)) })
		err = s.attempts[0].RecvMsg(s.reply)
		stop()
	} else {
		d := s.detours.For(hedgeContext(a, n), n, s.fullMethod, &s.origin.Trail)
		if err = s.again(d, n); err != nil && d.Refused() {
			s.Refuse(DeniedSameBackend)
			return err, race.ErrRefused
		}
	}
	if err == nil || err == io.EOF {
		return err, nil
	}
	var trailer metadata.MD
	if opened := s.attempts[n].ClientStream; opened != nil {
		trailer = opened.Trailer()
	}
	if n > 0 && turnedAway(err, trailer) {
		return err, race.ErrRefused
	}
	if s.in.pushedBack(s.key, err, trailer) {
		s.mu.Lock()
		s.barred = true
		s.mu.Unlock()
	}
	return err, s.in.final(status.Code(err), n, a.Err() != nil)
}

// again sends the request on a stream of its own and waits for the first message.
func (s *stream) again(ctx context.Context, n int) error {
	req, ok := s.copy()
	if !ok {
		return race.ErrLost
	}
	hedge, err := s.open(ctx, s.in.hedgeConn(s.cc), n)
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

// copy returns a copy of what was sent, which a hedge that is slow to end may read when the
// call is over. It returns false if the call is over.
func (s *stream) copy() (req any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, false
	}
	return grpcattempt.CopyOf(s.req), true
}

func (s *stream) Discard(_ error, err error) {
	if _, ok := err.(*race.Panic); ok {
		s.in.stats.HedgePanics.Add(1)
	}
}
