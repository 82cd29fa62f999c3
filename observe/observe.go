// Package observe defines observers and the events that they receive from packages hedge and dnshedge. Package hedge
// has the same names, such as hedge.Observer for [Observer]. A program that only uses DNS imports this package in place
// of hedge, which imports gRPC.
//
// The comments here define the terms for DNS. Package hedge defines them for HTTP and gRPC.
package observe

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/sanitize"
)

// An Observer receives the events of every call of a client, see hedge.WithObserver and the field Observers of a
// dnshedge.Client. Embed [NopObserver], so that methods added by later versions do not break the program.
//
// The methods are called in the goroutines that make the calls, sometimes with a lock of the call held. They must not
// block, must not use the observed Transport, Client or Hedger, and must be safe for concurrent use. The context is
// that of the attempt or the caller, with the caller's values.
//
// A loser may end after its call, because cancelling takes time and some losers linger. A call that panics is not
// reported as done.
//
// A panic of an observer has no effect on the call. It is counted in ObserverPanics, and the first one is logged. The
// same applies to [runtime.Goexit], except that it ends its goroutine: in the goroutine of an attempt, the hedge is not
// sent or the attempt fails. In the caller's goroutine, a response that the call has received is not closed.
//
// Over DNS, a call is a question that is sent to servers; an answer from the cache is not a call. If several callers
// share an exchange through a cache, the contexts are those of the Client. A query that replaces a lost or failed query
// has the same attempt number as that query. Each query is reported with its own upstream.
type Observer interface {
	// AttemptStart is called before each attempt. A call that is not hedged has one attempt. An attempt that starts
	// after RequestDone requests the remaining bytes of a body, see hedge.WithResume.
	AttemptStart(ctx context.Context, key KeyInfo, a AttemptInfo)

	// AttemptDone is called after each attempt, including losers. An HTTP attempt is done when its header has arrived.
	// With hedge.WithFirstByte, or for the remaining bytes of a body, it is done when the first byte of its body has
	// arrived.
	AttemptDone(ctx context.Context, key KeyInfo, a AttemptResult)

	// RequestDone is called once per call, when the caller gets its result: for a gRPC stream, the first message.
	RequestDone(ctx context.Context, key KeyInfo, r RequestResult)

	// Denied is called when a hedge was due and not sent, and once for each call that could not be hedged from the
	// start.
	Denied(ctx context.Context, key KeyInfo, reason Reason)

	// Budget is called after each attempt to pay for a hedge. The argument tokens is the number of further hedges that
	// the budget can pay for, with a precision of 0.001.
	Budget(key KeyInfo, tokens float64)

	// Audited is called when the audit of a host has compared another pair of time slots with and without hedging, and
	// when its verdict changes. The key has no route. See hedge.WithAudit.
	Audited(key KeyInfo, a Audit)

	// EndpointEvent is called when a call or hedge with a choice of endpoints goes to an endpoint, fails or is
	// overtaken there, and when an endpoint is ejected or restored. The key is that of the first endpoint. See
	// hedge.WithEndpoints.
	//
	// If the key is evicted or reset, its ejected endpoints count as restored, without an event.
	EndpointEvent(key KeyInfo, p EndpointEvent)

	// Limited is called by the hedge.Limiter of the given name once for each request: when it reaches the handler, when
	// its caller goes away, or when it is refused.
	Limited(ctx context.Context, limiter string, r LimiterResult)
}

// NopObserver is an Observer that does nothing. Other observers embed it.
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
	Client   string // name of the client: hedge.WithName, or the Name of a dnshedge.Client
	Protocol string // "http", "grpc", "dns", or "func" for hedge.Do

	// Host is the host, the gRPC target, or the key of hedge.Do. Over DNS it is an upstream such as udp://192.0.2.1:53:
	// that of the attempt in events of attempts, and the preferred upstream in other events.
	Host string

	// Route is the pattern of hedge.WithRoute, or the gRPC method. Over DNS it is empty, because the number of names is
	// not bounded.
	Route string
}

// Printable returns k with strings that are fit for labels of metrics: valid UTF-8 of at most 256 bytes. U+FFFD
// replaces each control character and each run of invalid bytes. Of a longer string, the first 200 bytes stay, followed
// by "…" and a hash of the whole string. Keys that differ only in replaced characters become equal.
func (k KeyInfo) Printable() KeyInfo {
	return KeyInfo{sanitize.CleanText(k.Client), sanitize.CleanText(k.Protocol), sanitize.CleanText(k.Host), sanitize.CleanText(k.Route)}
}

// An AttemptInfo identifies an attempt of a call by its number.
type AttemptInfo struct {
	Number int // 0: the primary; 1 and more: the hedges, in the order of their start
}

// Hedge reports whether the attempt is a hedge, not the primary.
func (a AttemptInfo) Hedge() bool { return a.Number > 0 }

// An AttemptResult is the outcome and the latency of an attempt that has ended.
type AttemptResult struct {
	AttemptInfo
	Outcome Outcome
	Latency time.Duration // since the start of the attempt
}

// An Outcome is the way in which an attempt ended: [Won], [Lost] or [Failed].
type Outcome string

// The outcomes of attempts.
const (
	Won    Outcome = "won"    // the caller got the result of this attempt; for a primary, this includes a gRPC status that ended the call
	Lost   Outcome = "lost"   // another attempt has won, and this one was mostly cancelled; or the hedge was not sent (see DeniedSameBackend), or a hedge.Limiter refused it
	Failed Outcome = "failed" // the attempt failed by itself, even if that ended the call, or the caller gave up
)

// A RequestResult describes a call that has ended: its attempts, winner, latency and saved time.
type RequestResult struct {
	Attempts int           // number of attempts sent: the primary and its hedges
	Winner   int           // number of the attempt whose result the caller got; -1 if the call failed
	HeldBack bool          // a hedge succeeded, but hedge.Do had to wait for the first call of the function, so the hedge saved no time
	Latency  time.Duration // from the start of the call to its result
	Delay    time.Duration // delay of the first hedge; 0: no hedge was planned

	// AnswersNotTaken is the number of hedges whose status would have ended the call if the primary had returned it,
	// such as 404 or NOT_FOUND: see hedge.WithAnswerStatus and hedge.WithAnswerCodes.
	AnswersNotTaken int

	// Saved is the additional time that the caller would have waited without the winning hedge. It is estimated from
	// primaries that were not cancelled, and accurate to a factor of about two; with few such primaries it is far too
	// low.
	//
	// In shadow mode it is the time that a hedge would have saved, which is a good estimate. With hedge.WithAudit it is
	// 0: the audit measures the saved time, see [Audit].
	Saved time.Duration

	Audit string // [Verdict] for the host; "": not audited

	// Share is the number of hedges per call that the budget pays for in the long run, according to the settings: 0.1
	// by default, or less on a route with a smaller budget. It is 0 if the call could not be hedged, or if the budget
	// is 0.
	Share float64
}

// An EndpointEvent reports that an endpoint was used, has failed, was overtaken, or was ejected or restored.
type EndpointEvent struct {
	Endpoint string // URL or target of the endpoint, as configured
	Kind     EndpointKind
}

// An EndpointKind is the kind of an [EndpointEvent].
type EndpointKind string

// The kinds of events of endpoints.
const (
	EndpointCalled    EndpointKind = "called"    // a primary was sent to the endpoint
	EndpointHedged    EndpointKind = "hedged"    // a hedge was sent to the endpoint
	EndpointFailed    EndpointKind = "failed"    // a primary or hedge at the endpoint failed
	EndpointOvertaken EndpointKind = "overtaken" // a primary or hedge at the endpoint was too slow: a later attempt at another endpoint won, or the caller's deadline passed
	EndpointEjected   EndpointKind = "ejected"   // calls go to other endpoints from now on
	EndpointRestored  EndpointKind = "restored"  // calls go to the endpoint again
)

// A Reason is the reason why a hedge was not sent, or why a call could not be hedged.
type Reason string

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget      Reason = "budget"       // the budget or MaxHedgesPerSecond was exhausted
	DeniedSlow        Reason = "slow"         // most calls are slow, which is an outage and not a slow tail
	DeniedPaused      Reason = "paused"       // the server pushed back; never over DNS
	DeniedDeadline    Reason = "deadline"     // too little time was left before the deadline for a hedge to succeed
	DeniedInFlight    Reason = "in-flight"    // the limit of concurrent hedges was reached: a thousand per key, or hedge.MaxDetached for DoDetached
	DeniedNotReady    Reason = "not-ready"    // no connection was ready, or the request could not be copied; never over DNS
	DeniedSameBackend Reason = "same-backend" // the gRPC balancer hedge_elsewhere had no other backend for the hedge, see hedge.Interceptor
	DeniedAudit       Reason = "audit"        // the audit has paused hedging to measure its effect, or has found that it harms, see hedge.WithAudit
	DeniedShadow      Reason = "shadow"       // shadow mode: the hedge was only counted, see hedge.WithShadow
)

// Reasons why a call could not be hedged.
const (
	DeniedWarming  Reason = "warming"  // too few calls of the key were measured
	DeniedDisabled Reason = "disabled" // hedging was disabled by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   Reason = "method"   // nothing declares the call safe to send twice
	DeniedNested   Reason = "nested"   // the call is made for a hedge, see hedge.Middleware, or an outer client hedges it already
	DeniedBody     Reason = "body"     // the request cannot be sent twice, see hedge.Transport and hedge.Interceptor.Stream; never over DNS
)
