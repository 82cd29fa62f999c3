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
// block, must not use the observed Transport, Client or Hedger, and must be safe for concurrent use. The context is the
// context of the attempt or of the call, and has the caller's values.
//
// A losing attempt may end after its call, because cancelling takes time and some losers linger. RequestDone is not
// called for a call that panics.
//
// A panic of an observer has no effect on the call. It is counted in ObserverPanics, and the first one is logged.
// [runtime.Goexit] is treated like a panic, except that it ends its goroutine.
//
// In the goroutine of an attempt, the hedge is then not sent or the attempt fails. In the caller's goroutine, a
// response that the call has received is not closed.
//
// Over DNS, a call is a question that is sent to servers; a question that is answered from the cache is not a call. If
// several callers wait for the same response through a cache, the methods get contexts of the Client, not of the
// callers.
//
// If a query is lost or fails, the query that replaces it has the same attempt number. Each query is reported with its
// own upstream.
type Observer interface {
	// ClientCreated is called once for each client with the observer: by the constructor, or when a dnshedge.Client is first
	// used. The observer can then read the state of the client at any time, see [Clients].
	ClientCreated(s ClientState)

	// AttemptStart is called before each attempt of a call. A call that is not hedged has one attempt. An attempt that
	// starts after RequestDone requests the remaining bytes of a body, see hedge.WithResume.
	AttemptStart(ctx context.Context, key KeyInfo, a AttemptInfo)

	// AttemptDone is called after each attempt, including losers. An HTTP attempt is done when its header has arrived.
	// With hedge.WithFirstByte, or for the remaining bytes of a body, it is done when the first byte of its body has
	// arrived.
	AttemptDone(ctx context.Context, key KeyInfo, a AttemptResult)

	// RequestDone is called once per call, when the caller gets the result. The result of a gRPC stream is its first
	// message.
	RequestDone(ctx context.Context, key KeyInfo, r RequestResult)

	// Denied is called when a hedge was due and not sent. It is also called once for each call that could not be hedged
	// from the start.
	Denied(ctx context.Context, key KeyInfo, reason Reason)

	// Audited is called when the audit of a host (see hedge.WithAudit) has compared another pair of time slots, and when
	// its verdict changes. One slot of a pair is with hedging, and the other without. The argument key identifies the
	// host; its Route is empty.
	Audited(key KeyInfo, a Audit)

	// EndpointEvent is called for calls with a choice of endpoints, see hedge.WithEndpoints: when an attempt goes to an
	// endpoint, fails there, or is overtaken there. It is also called when an endpoint is ejected or restored. The
	// argument key is the latency key of the first endpoint.
	//
	// If the key is evicted or reset, its ejected endpoints count as restored, without an event.
	EndpointEvent(key KeyInfo, p EndpointEvent)

	// Limited is called once for each request at a hedge.Limiter: when the request reaches the handler, is cancelled in
	// the queue, or is refused. The argument limiter is the name of the Limiter.
	Limited(ctx context.Context, limiter string, r LimiterResult)
}

// NopObserver is an Observer whose methods do nothing. Observers embed it, so that they need to define only the methods
// that they use.
type NopObserver struct{}

var _ Observer = NopObserver{}

// ClientCreated implements [Observer] and does nothing.
func (NopObserver) ClientCreated(ClientState) {}

// AttemptStart implements [Observer] and does nothing.
func (NopObserver) AttemptStart(context.Context, KeyInfo, AttemptInfo) {}

// AttemptDone implements [Observer] and does nothing.
func (NopObserver) AttemptDone(context.Context, KeyInfo, AttemptResult) {}

// RequestDone implements [Observer] and does nothing.
func (NopObserver) RequestDone(context.Context, KeyInfo, RequestResult) {}

// Denied implements [Observer] and does nothing.
func (NopObserver) Denied(context.Context, KeyInfo, Reason) {}

// Audited implements [Observer] and does nothing.
func (NopObserver) Audited(KeyInfo, Audit) {}

// EndpointEvent implements [Observer] and does nothing.
func (NopObserver) EndpointEvent(KeyInfo, EndpointEvent) {}

// Limited implements [Observer] and does nothing.
func (NopObserver) Limited(context.Context, string, LimiterResult) {}

// A KeyInfo identifies the client, the host and the route of an event, for example as labels of metrics.
type KeyInfo struct {
	Client   string // name of the client, as set by hedge.WithName or the Name of a dnshedge.Client
	Protocol string // "http", "grpc", "dns", or "func" for hedge.Do

	// Host is the host, the gRPC target, or the key of hedge.Do. Over DNS it is an upstream such as udp://192.0.2.1:53:
	// the upstream of the attempt in events of attempts, and the preferred upstream in other events.
	Host string

	// Route is the pattern of hedge.WithRoute, or the gRPC method. Over DNS it is empty, because the number of domain
	// names is not bounded.
	Route string
}

// Printable returns a copy of k whose strings can be used as labels of metrics: valid UTF-8 of at most 256 bytes. Each
// control character and each run of invalid bytes is replaced by U+FFFD.
//
// Of a longer string, the first 200 bytes are kept, followed by "…" and a hash of the whole string. Keys that differ
// only in replaced characters become equal.
func (k KeyInfo) Printable() KeyInfo {
	return KeyInfo{sanitize.CleanText(k.Client), sanitize.CleanText(k.Protocol), sanitize.CleanText(k.Host), sanitize.CleanText(k.Route)}
}

// An AttemptInfo holds the number of an attempt within its call, which distinguishes hedges from the primary.
type AttemptInfo struct {
	Number int // 0: the primary; 1 and more: the hedges, in the order of their start

	// IsResumption is true for a hedge that requests the remaining bytes of a body, see hedge.WithResume. It may start after
	// the end of its call, so it is not counted in the Attempts of a [RequestResult].
	IsResumption bool

	// IsRetry is true for the primary of a call that hedge.MarkRetry has marked as a retry. Its token was spent by the
	// caller, see hedge.Budget.
	IsRetry bool
}

// Hedge reports whether the attempt is a hedge. It is false for the primary.
func (a AttemptInfo) Hedge() bool { return a.Number > 0 }

// An AttemptResult describes an attempt that has ended: its number, its latency, and whether it won.
type AttemptResult struct {
	AttemptInfo
	Outcome Outcome       // whether the attempt won, lost or failed
	Latency time.Duration // time from the start of the attempt to its end
}

// An Outcome says whether the caller got the result of an attempt ([Won]), got the result of another attempt ([Lost]),
// or the attempt failed ([Failed]) or was not sent ([Withdrawn]).
type Outcome string

// The outcomes of attempts.
const (
	Won    Outcome = "won"    // the caller got the result of this attempt; for a primary, this includes a gRPC status that ended the call
	Lost   Outcome = "lost"   // another attempt has won, and this attempt was usually cancelled; also a hedge that a hedge.Limiter refused
	Failed Outcome = "failed" // the attempt ended with a failure, even if that ended the call, or the caller cancelled the call

	Withdrawn Outcome = "withdrawn" // the hedge started, but was not sent, see [DeniedSameBackend] and [DeniedNotReady]
)

// A RequestResult describes a call that has ended: the number of its attempts, the winner, the latency and the saved
// time.
type RequestResult struct {
	Attempts int           // number of attempts sent: the primary and its hedges
	Winner   int           // number of the attempt whose result the caller got; -1 if the call failed
	HeldBack bool          // a hedge succeeded, but hedge.Do had to wait for the first call of the function, so the hedge saved no time
	IsRetry  bool          // hedge.MarkRetry has marked the call as a retry of a call that failed
	Latency  time.Duration // from the start of the call to its result
	Delay    time.Duration // time from the start of the call to its first hedge; 0: no hedge was planned

	// AnswersNotTaken is the number of hedges whose response was not returned to the caller because of its status, for
	// example 404 or NOT_FOUND. The same status of the primary would have ended the call. See hedge.WithAnswerStatus and
	// hedge.WithAnswerCodes.
	AnswersNotTaken int

	// Saved is the additional time that the caller would have waited without the winning hedge. It is estimated from
	// primaries that were not cancelled, and accurate to a factor of about two; with few uncancelled primaries it is far
	// too low.
	//
	// In shadow mode it is the time that a hedge would have saved, which is a good estimate. With hedge.WithAudit it is
	// 0: the audit measures the saved time, see [Audit].
	Saved time.Duration

	Audit string // [Verdict] about the host; "": the host is not audited
}

// An EndpointEvent reports to observers that an endpoint was used, has failed, was overtaken, or was ejected or
// restored. See hedge.WithEndpoints.
type EndpointEvent struct {
	Endpoint string       // URL or target of the endpoint, as configured
	Kind     EndpointKind // which of these events it is
}

// An EndpointKind says which event an [EndpointEvent] reports, such as [EndpointCalled], [EndpointFailed] or
// [EndpointEjected].
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

// A Reason says why a hedge was not sent, or why a call could not be hedged. Its text, such as "budget", is used in
// metrics and logs.
type Reason string

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget      Reason = "budget"       // the budget or MaxHedgesPerSecond was exhausted
	DeniedSlow        Reason = "slow"         // most calls are slow, which indicates an outage, in which hedges would add load
	DeniedPaused      Reason = "paused"       // the server pushed back; never over DNS
	DeniedDeadline    Reason = "deadline"     // too little time was left before the deadline for a hedge to succeed
	DeniedInFlight    Reason = "in-flight"    // the limit of concurrent hedges was reached: a thousand per key, or hedge.MaxDetached for DoDetached
	DeniedNotReady    Reason = "not-ready"    // no connection was ready, or the request could not be copied; never over DNS
	DeniedSameBackend Reason = "same-backend" // the gRPC balancer hedge_elsewhere found no other backend for the hedge, see hedge.Interceptor
	DeniedAudit       Reason = "audit"        // the audit has paused hedging to measure its effect, or has found that it harms, see hedge.WithAudit
	DeniedShadow      Reason = "shadow"       // shadow mode: the hedge was only counted, see hedge.WithShadow
)

// Reasons why a call could not be hedged.
const (
	DeniedWarming  Reason = "warming"  // too few calls of the key were measured
	DeniedDisabled Reason = "disabled" // hedging was disabled by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   Reason = "method"   // nothing declares the call safe to send twice
	DeniedNested   Reason = "nested"   // the call is made while a server handles a hedge, see hedge.Middleware, or an outer client hedges it already
	DeniedBody     Reason = "body"     // the request cannot be sent twice, see hedge.Transport and hedge.Interceptor.Stream; never over DNS
)
