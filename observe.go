package hedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/internal/race"
)

// An Observer is told what happens to every call, see [WithObserver]. Embed
// [NopObserver], so that a method added later does not break yours.
//
// The methods are called by the goroutines that make the calls, sometimes with a
// call's lock held. They must not block, must not use what they observe, and must be
// safe for concurrent use. A loser may end after its request: cancelling takes time,
// and some losers linger. Contexts are the attempt's or the caller's, and have the
// caller's values. A call that panics is not reported as done. A panic of an observer
// ends nothing: it is counted in [Stats].ObserverPanics, and the first is logged, see
// [WithLogger]. So is [runtime.Goexit], which ends the goroutine and nothing else: if
// that was to make an attempt, the hedge is not sent, or the attempt has failed.
type Observer interface {
	// AttemptStart is called before each attempt. A call that is not hedged has one.
	AttemptStart(ctx context.Context, key KeyInfo, a AttemptInfo)

	// AttemptDone is called after each attempt, losers included. Over HTTP an
	// attempt is done when its header has arrived, or with [WithFirstByte] its first byte.
	AttemptDone(ctx context.Context, key KeyInfo, a AttemptResult)

	// RequestDone is called once per call, when the caller gets its answer. For
	// a gRPC stream that is the first message.
	RequestDone(ctx context.Context, key KeyInfo, r RequestResult)

	// Denied is called when a hedge was due and not sent, and once for each call
	// that could not be hedged from the start.
	Denied(ctx context.Context, key KeyInfo, reason Reason)

	// Budget is called with the number of hedges that the budget would still pay
	// for, to a thousandth, whenever it was asked for one.
	Budget(key KeyInfo, tokens float64)
}

// NopObserver is an Observer that does nothing, for others to embed.
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

// Printable returns k as labels of metrics need it: in valid UTF-8, with U+FFFD for
// each control character and each run of invalid bytes, and no string longer than 256
// bytes. A longer one is cut, and ends with "…". Different keys may become equal.
func (k KeyInfo) Printable() KeyInfo {
	return KeyInfo{label.Clean(k.Client), label.Clean(k.Protocol), label.Clean(k.Host), label.Clean(k.Route)}
}

// An AttemptInfo identifies an attempt of a call.
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

// An Outcome is how an attempt ended.
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

	// Saved is how much longer the caller would have waited if no hedge had won. It
	// is an estimate from the primaries that were not cancelled, good to a factor of
	// about two, and far too low while those are few. With [WithShadow] it is how
	// much less the caller would have waited, and a good estimate.
	Saved time.Duration
}

// A Reason is why a hedge, or any hedge of a call, was not sent.
type Reason string

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget   Reason = "budget"    // the budget or MaxHedgesPerSecond was spent
	DeniedSlow     Reason = "slow"      // most calls are slow: an outage, not a tail
	DeniedPaused   Reason = "paused"    // the server pushed back
	DeniedDeadline Reason = "deadline"  // too little time was left for a hedge to answer
	DeniedInFlight Reason = "in-flight" // a thousand hedges of the key were in flight, or [MaxDetached] of a Hedger's DoDetached
	DeniedNotReady Reason = "not-ready" // no connection could carry it, or no copy could be made
	DeniedShadow   Reason = "shadow"    // it would have been sent, see [WithShadow]
)

// Reasons why no hedge of a call could be sent.
const (
	DeniedWarming  Reason = "warming"  // too little is known
	DeniedDisabled Reason = "disabled" // by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   Reason = "method"   // nothing says that it is safe to send twice
	DeniedNested   Reason = "nested"   // it is made for a hedge, see [Middleware]
	DeniedBody     Reason = "body"     // it cannot be sent twice, see [Transport] and [Interceptor.Stream]
)

// WithObserver tells o what happens to every call. It may be given several
// times. A call that needs no hedge then costs two more readings of the clock, and
// what o does. It panics if o is nil.
func WithObserver(o Observer) Option {
	if o == nil {
		panic("hedge: WithObserver: Observer is nil")
	}
	return optionFunc(func(c *config) { c.observers = append(c.observers, o) })
}

// WithName names a Transport, Interceptor or Hedger for observers that watch several:
// see [KeyInfo], and the label client of metrics. The default is no name.
func WithName(name string) Option {
	return optionFunc(func(c *config) { c.name = name })
}

// AttemptFromContext returns the attempt that ctx belongs to. It is for transports,
// interceptors and functions below. If one hedged call is made within another, it
// is the inner one's attempt. It reports false for calls that are sent once.
func AttemptFromContext(ctx context.Context) (AttemptInfo, bool) {
	n, ok := race.Number(ctx)
	return AttemptInfo{Number: n}, ok
}

// watcher passes an engine's events to observers.
type watcher struct {
	observers        []Observer
	client, protocol string
	panicked         func(o Observer, value any) // is told of a panic
}

func (w *watcher) key(n engine.Name) KeyInfo { return KeyInfo{w.client, w.protocol, n.Host, n.Route} }

// tell calls f for each observer. A panic must not leave it: f may run in a
// goroutine of a timer, where a panic ends the process. That f ends its goroutine cannot be prevented.
func (w *watcher) tell(f func(Observer)) {
	for _, o := range w.observers {
		w.tellOne(o, f)
	}
}

func (w *watcher) tellOne(o Observer, f func(Observer)) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			w.panicked(o, p)
		} else if !returned {
			w.panicked(o, "runtime.Goexit")
		}
	}()
	f(o)
	returned = true
}

func (w *watcher) AttemptStart(ctx context.Context, name engine.Name, n int) {
	w.tell(func(o Observer) { o.AttemptStart(ctx, w.key(name), AttemptInfo{n}) })
}

func (w *watcher) AttemptDone(ctx context.Context, name engine.Name, n int, how race.Outcome, took time.Duration) {
	outcome := [...]Outcome{race.Won: Won, race.Lost: Lost, race.Failed: Failed}[how]
	w.tell(func(o Observer) { o.AttemptDone(ctx, w.key(name), AttemptResult{AttemptInfo{n}, outcome, took}) })
}

func (w *watcher) RequestDone(ctx context.Context, name engine.Name, r engine.Report) {
	w.tell(func(o Observer) { o.RequestDone(ctx, w.key(name), RequestResult(r)) })
}

func (w *watcher) Denied(ctx context.Context, name engine.Name, reason engine.Reason) {
	w.tell(func(o Observer) { o.Denied(ctx, w.key(name), Reason(reason.String())) })
}

func (w *watcher) Budget(name engine.Name, tokens float64) {
	w.tell(func(o Observer) { o.Budget(w.key(name), tokens) })
}
