package hedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

// An Observer is told what happens to every call, see [WithObserver]. Embed
// [NopObserver], so that a method added later does not break yours.
//
// The methods are called by the goroutines that make the calls, sometimes with a
// call's lock held: they must not block, not call back into what is observed, and be safe
// for concurrent use. A loser may be done after its request: cancelling takes
// time, and some losers linger. Contexts are the attempt's or the caller's, with
// the caller's values. A call that panics is not reported as done.
type Observer interface {
	// AttemptStart is called before each attempt. A call that is not hedged has one.
	AttemptStart(ctx context.Context, key KeyInfo, a AttemptInfo)

	// AttemptDone is called after each attempt, losers included. Over HTTP an
	// attempt is done when its header is there, or with [WithFirstByte] its first byte.
	AttemptDone(ctx context.Context, key KeyInfo, a AttemptResult)

	// RequestDone is called once per call, when the caller gets its answer. For
	// a gRPC stream that is the first message.
	RequestDone(ctx context.Context, key KeyInfo, r RequestResult)

	// Denied is called when a hedge was due and not sent, and once for each call
	// that could not be hedged from the start.
	Denied(ctx context.Context, key KeyInfo, why Reason)

	// Budget is called with the hedges that remain to be spent, whenever the
	// budget was asked for one.
	Budget(key KeyInfo, tokens float64)
}

// NopObserver does nothing, for others to embed.
type NopObserver struct{}

var _ Observer = NopObserver{}

// AttemptStart does nothing.
func (NopObserver) AttemptStart(context.Context, KeyInfo, AttemptInfo) {}

// AttemptDone does nothing.
func (NopObserver) AttemptDone(context.Context, KeyInfo, AttemptResult) {}

// RequestDone does nothing.
func (NopObserver) RequestDone(context.Context, KeyInfo, RequestResult) {}

// Denied does nothing.
func (NopObserver) Denied(context.Context, KeyInfo, Reason) {}

// Budget does nothing.
func (NopObserver) Budget(KeyInfo, float64) {}

// A KeyInfo says what a call belongs to.
type KeyInfo struct {
	Client   string // see [WithName]
	Protocol string // "http", "grpc", or "func" for [Do]
	Host     string // or the gRPC target, or the key that was asked for
	Route    string // the pattern of [WithRoute], or the gRPC method
}

// An AttemptInfo says which attempt of a call it is about.
type AttemptInfo struct {
	Number int // 0 is the primary
}

// Hedge reports whether the attempt is not the primary.
func (a AttemptInfo) Hedge() bool { return a.Number > 0 }

// An AttemptResult is how an attempt ended.
type AttemptResult struct {
	AttemptInfo
	Outcome Outcome
	Latency time.Duration // since the attempt began
}

// An Outcome is what became of an attempt.
type Outcome string

// The outcomes.
const (
	Won    Outcome = "won"    // the caller got its answer, or the gRPC status that ended the call
	Lost   Outcome = "lost"   // another attempt had won; its own error, if any, is mostly the cancellation
	Failed Outcome = "failed" // by itself, or because the caller gave up
)

// A RequestResult is how a call ended.
type RequestResult struct {
	Attempts int           // made, losers included
	Winner   int           // the number of the attempt that answered; -1 if the caller got a failure
	Latency  time.Duration // what the caller waited
	Delay    time.Duration // after which the call was to be hedged; 0: not at all

	// Saved is how much longer the caller would have waited had no hedge won. A
	// primary that loses is cut, so nobody knows: it is estimated from those that
	// were not, to a factor of two or so, and far too low while those are few. With
	// [WithShadow] it is how much less the caller would have waited, which is
	// estimated well.
	Saved time.Duration
}

// A Reason is why a hedge, or any hedge of a call, was not sent.
type Reason string

// A hedge that was due was not sent.
const (
	DeniedBudget   Reason = "budget"    // the budget or MaxHedgesPerSecond was spent
	DeniedSlow     Reason = "slow"      // most calls are slow: an outage, not a tail
	DeniedPaused   Reason = "paused"    // the server pushed back
	DeniedDeadline Reason = "deadline"  // too little time was left for a hedge to answer
	DeniedInFlight Reason = "in-flight" // a thousand hedges were out
	DeniedNotReady Reason = "not-ready" // no connection could carry it, or no copy could be made
	DeniedShadow   Reason = "shadow"    // nothing spoke against it, but hedges are only counted, see [WithShadow]
)

// A call could not be hedged from the start.
const (
	DeniedWarming  Reason = "warming"  // too little is known
	DeniedDisabled Reason = "disabled" // by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   Reason = "method"   // nothing says that it is safe to send twice
	DeniedNested   Reason = "nested"   // it is made for a hedge, see [Middleware]
	DeniedBody     Reason = "body"     // it cannot be sent twice, see [Transport] and [Interceptor.Stream]
)

// WithObserver tells o what happens to every call. It may be given several
// times. A call that needs no hedge then costs two readings of the clock more, and
// what o does. It panics if o is nil.
func WithObserver(o Observer) Option {
	if o == nil {
		panic("hedge: WithObserver: Observer is nil")
	}
	return optionFunc(func(c *config) { c.observers = append(c.observers, o) })
}

// WithName gives what is made a name, for observers that watch several:
// [KeyInfo.Client], and the label client of metrics. The default is none.
func WithName(name string) Option {
	return optionFunc(func(c *config) { c.name = name })
}

// AttemptFromContext returns which attempt ctx belongs to, for transports,
// interceptors and functions below. Of hedgers within hedgers it is the
// innermost. It reports false for calls that are sent once.
func AttemptFromContext(ctx context.Context) (AttemptInfo, bool) {
	n, ok := race.Number(ctx)
	return AttemptInfo{Number: n}, ok
}

// watcher tells an engine's events to observers.
type watcher struct {
	observers        []Observer
	client, protocol string
}

func (w *watcher) key(n engine.Name) KeyInfo { return KeyInfo{w.client, w.protocol, n.Host, n.Route} }

func (w *watcher) AttemptStart(ctx context.Context, name engine.Name, n int) {
	for _, o := range w.observers {
		o.AttemptStart(ctx, w.key(name), AttemptInfo{n})
	}
}

func (w *watcher) AttemptDone(ctx context.Context, name engine.Name, n int, how race.Outcome, took time.Duration) {
	outcome := [...]Outcome{race.Won: Won, race.Lost: Lost, race.Failed: Failed}[how]
	for _, o := range w.observers {
		o.AttemptDone(ctx, w.key(name), AttemptResult{AttemptInfo{n}, outcome, took})
	}
}

func (w *watcher) RequestDone(ctx context.Context, name engine.Name, r engine.Report) {
	for _, o := range w.observers {
		o.RequestDone(ctx, w.key(name), RequestResult(r))
	}
}

func (w *watcher) Denied(ctx context.Context, name engine.Name, reason engine.Reason) {
	for _, o := range w.observers {
		o.Denied(ctx, w.key(name), Reason(reason.String()))
	}
}

func (w *watcher) Budget(name engine.Name, tokens float64) {
	for _, o := range w.observers {
		o.Budget(w.key(name), tokens)
	}
}
