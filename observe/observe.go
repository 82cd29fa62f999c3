// Package observe has the interface and the events of observers. Packages hedge and dnshedge
// call observers. Package hedge has the same names: hedge.Observer is [Observer]. A program
// that only uses DNS imports this package and not hedge, which imports gRPC.
//
// This package defines the terms over DNS. Package hedge defines them over HTTP and gRPC.
package observe

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/sanitize"
)

// An Observer receives the events of every call, see hedge.WithObserver and the field
// Observers of a dnshedge.Client. Embed [NopObserver]: then a method that a later version adds does
// not break the program.
//
// The methods are called by the goroutines that make the calls, sometimes with a
// call's lock held. They must not block, must not use the Transport, Client or Hedger that they observe, and must be
// safe for concurrent use. A loser may end after its request: cancelling takes time,
// and some losers linger. Contexts are the attempt's or the caller's, and have the
// caller's values. A call that panics is not reported as done. A panic of an observer
// ends nothing: it is counted (ObserverPanics), and the first is logged. So is
// [runtime.Goexit], which ends the goroutine and nothing else: if that was to make an
// attempt, the hedge is not sent, or the attempt has failed. If it is the caller's, an
// answer that the call has got is closed by nobody.
//
// Over DNS a call is a question that is put to servers; an answer from the cache is
// none. Where callers share one exchange through a cache, contexts are the Client's own.
// A query that replaces one which was lost, or which a server could not answer, has the
// number 0 as the primary has, or that of the hedge that it replaces: each is told of
// with the upstream that it goes to.
type Observer interface {
	// AttemptStart is called before each attempt. A call that is not hedged has one. One
	// that begins after RequestDone asks for the rest of a body, see hedge.WithResume.
	AttemptStart(ctx context.Context, key KeyInfo, a AttemptInfo)

	// AttemptDone is called after each attempt, losers included. Over HTTP an
	// attempt is done when its header has arrived; with hedge.WithFirstByte, and if it
	// asks for the rest of a body, its first byte.
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

	// Audited is called when the audit of a host has compared another pair of times with
	// and without hedging, and when its verdict changes; the key has no route. See
	// hedge.WithAudit.
	Audited(key KeyInfo, a Audit)

	// EndpointEvent is called when a call or hedge that has a choice of endpoints goes to one of them, when that ends badly,
	// and when an endpoint is ejected or restored. The key is that of the first endpoint, whose calls have that choice. See
	// hedge.WithEndpoints. A key that is forgotten or reset ejects no endpoint any more.
	EndpointEvent(key KeyInfo, p EndpointEvent)

	// Limited is called by a hedge.Limiter of that name for each request that comes to it:
	// when it reaches the handler, its caller has gone, or it is turned away.
	Limited(ctx context.Context, limiter string, r LimiterResult)
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

// Audited does nothing.
func (NopObserver) Audited(KeyInfo, Audit) {}

// EndpointEvent does nothing.
func (NopObserver) EndpointEvent(KeyInfo, EndpointEvent) {}

// Limited does nothing.
func (NopObserver) Limited(context.Context, string, LimiterResult) {}

// A KeyInfo identifies the client, the host and the route of a call.
type KeyInfo struct {
	Client   string // the name of the client: hedge.WithName, or a dnshedge.Client's Name
	Protocol string // "http", "grpc", "dns", or "func" for hedge.Do

	// Host is the host, the gRPC target, or the key that was asked for. Over DNS it is
	// an upstream such as udp://192.0.2.1:53: in events of an attempt the attempt's upstream, and in other events the
	// upstream that is asked first.
	Host string

	// Route is the pattern of hedge.WithRoute, or the gRPC method. Over DNS it is
	// empty: names and types are the caller's to choose, and there is no end of them.
	Route string
}

// Printable returns k as labels of metrics need it: in valid UTF-8, with U+FFFD for
// each control character and each run of invalid bytes, and no string longer than 256
// bytes. A longer one is its first 200 bytes, "…" and a hash of the whole. Keys that differ only in
// replaced characters become equal.
func (k KeyInfo) Printable() KeyInfo {
	return KeyInfo{sanitize.CleanText(k.Client), sanitize.CleanText(k.Protocol), sanitize.CleanText(k.Host), sanitize.CleanText(k.Route)}
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

// An Outcome is how an attempt ended: [Won], [Lost] or [Failed].
type Outcome string

// The outcomes.
const (
	Won    Outcome = "won"    // the caller got its answer; a gRPC status that ended the call is one if it is the primary's
	Lost   Outcome = "lost"   // another attempt had won; its own error, if any, is mostly the cancellation. Or it was not sent, see DeniedSameBackend, or a hedge.Limiter turned it away
	Failed Outcome = "failed" // by itself, also if that ended the call, or because the caller gave up
)

// A RequestResult is how a call ended.
type RequestResult struct {
	Attempts int           // sent, losers included: the primary and its hedges
	Winner   int           // the number of the attempt that answered; -1 if the caller got a failure
	HeldBack bool          // a hedge answered, and hedge.Do waited for the first call of the function: the hedge gained nothing
	Latency  time.Duration // from the call to its answer or failure
	Delay    time.Duration // after which the call was to be hedged; 0: not at all

	// AnswersNotTaken is how many hedges had an answer that ends a call only if it is the
	// primary's, such as 404 or NOT_FOUND: see hedge.WithAnswerStatus, hedge.WithAnswerCodes.
	AnswersNotTaken int

	// Saved is how much longer the caller would have waited if no hedge had won. It
	// is an estimate from the primaries that were not cancelled, good to a factor of
	// about two, and far too low while few primaries were not cancelled. In shadow mode it is how
	// much less the caller would have waited, and a good estimate.
	// With hedge.WithAudit it is 0: an audit measures the saved time, see [Audit].
	Saved time.Duration

	Audit string // the host's [Verdict]; "" if it is not audited

	// Share is how many hedges the budget pays for per call in the long run, by the settings: 0.1 by default, and
	// less on a route with less. 0 if the call could not be hedged, such as a request that writes, or if the budget is 0.
	Share float64
}

// An EndpointEvent is something that happened at an endpoint.
type EndpointEvent struct {
	Endpoint string // its URL or target, as it was given
	Kind     EndpointKind
}

// An EndpointKind is the kind of an [EndpointEvent].
type EndpointKind string

// What happens at endpoints.
const (
	EndpointCalled    EndpointKind = "called"    // a primary goes there
	EndpointHedged    EndpointKind = "hedged"    // a hedge goes there
	EndpointFailed    EndpointKind = "failed"    // one of these has failed there
	EndpointOvertaken EndpointKind = "overtaken" // one of these was too slow: an attempt at another endpoint was quicker, or the caller's deadline passed
	EndpointEjected   EndpointKind = "ejected"   // calls go to other endpoints from now on
	EndpointRestored  EndpointKind = "restored"  // and no longer do
)

// A Reason is why a hedge, or any hedge of a call, was not sent.
type Reason string

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget      Reason = "budget"       // the budget or MaxHedgesPerSecond was spent
	DeniedSlow        Reason = "slow"         // most calls are slow: an outage, not a tail
	DeniedPaused      Reason = "paused"       // the server pushed back; not over DNS
	DeniedDeadline    Reason = "deadline"     // too little time was left for a hedge to answer
	DeniedInFlight    Reason = "in-flight"    // a thousand hedges of the key were in flight, or hedge.MaxDetached of a Hedger's DoDetached
	DeniedNotReady    Reason = "not-ready"    // no connection could carry it, or no copy could be made; not over DNS
	DeniedSameBackend Reason = "same-backend" // gRPC's balancer hedge_elsewhere had no other backend for it, see hedge.Interceptor
	DeniedAudit       Reason = "audit"        // hedging rests to be measured, or was measured to harm, see hedge.WithAudit
	DeniedShadow      Reason = "shadow"       // it would have been sent, but hedges are only counted, see hedge.WithShadow
)

// Reasons why no hedge of a call could be sent.
const (
	DeniedWarming  Reason = "warming"  // too little is known
	DeniedDisabled Reason = "disabled" // by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   Reason = "method"   // nothing says that it is safe to send twice
	DeniedNested   Reason = "nested"   // it is made for a hedge, see hedge.Middleware, or hedged above
	DeniedBody     Reason = "body"     // it cannot be sent twice, see hedge.Transport and hedge.Interceptor.Stream; not over DNS
)
