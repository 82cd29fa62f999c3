// Code generated from package observe by go generate ./test/repo; DO NOT EDIT.

package hedge

import "github.com/gohedge/hedge/observe"

// What observers are told. The types are those of package observe, which package
// dnshedge has as well: one Observer serves HTTP, gRPC, functions and DNS.
type (
	// An Observer receives the events of every call, see [WithObserver] and the field Observers of a dnshedge.Client.
	Observer = observe.Observer
	// NopObserver is an Observer that does nothing, for others to embed.
	NopObserver = observe.NopObserver
	// A KeyInfo identifies the client, the host and the route of a call.
	KeyInfo = observe.KeyInfo
	// An AttemptInfo identifies an attempt of a call.
	AttemptInfo = observe.AttemptInfo
	// An AttemptResult is how an attempt ended.
	AttemptResult = observe.AttemptResult
	// An Outcome is how an attempt ended: [Won], [Lost] or [Failed].
	Outcome = observe.Outcome
	// A RequestResult is how a call ended.
	RequestResult = observe.RequestResult
	// An EndpointEvent is something that happened at an endpoint.
	EndpointEvent = observe.EndpointEvent
	// An EndpointKind is the kind of an [EndpointEvent].
	EndpointKind = observe.EndpointKind
	// A Reason is why a hedge, or any hedge of a call, was not sent.
	Reason = observe.Reason
	// A Verdict says whether hedging helps a host, as [WithAudit] has measured.
	Verdict = observe.Verdict
	// An Audit is the effect of hedging on the calls to a host, as measured by switching hedging off and on, see [WithAudit].
	Audit = observe.Audit
)

// The outcomes.
const (
	Won    = observe.Won    // the caller got its answer; a gRPC status that ended the call is one if it is the primary's
	Lost   = observe.Lost   // another attempt had won; its own error, if any, is mostly the cancellation. Or it was not sent, see [DeniedSameBackend], or a [Limiter] turned it away
	Failed = observe.Failed // by itself, also if that ended the call, or because the caller gave up
)

// What happens at endpoints.
const (
	EndpointCalled    = observe.EndpointCalled    // a primary goes there
	EndpointHedged    = observe.EndpointHedged    // a hedge goes there
	EndpointFailed    = observe.EndpointFailed    // one of these has failed there
	EndpointOvertaken = observe.EndpointOvertaken // one of these was too slow: an attempt at another endpoint was quicker, or the caller's deadline passed
	EndpointEjected   = observe.EndpointEjected   // calls go to other endpoints from now on
	EndpointRestored  = observe.EndpointRestored  // and no longer do
)

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget      = observe.DeniedBudget      // the budget or MaxHedgesPerSecond was spent
	DeniedSlow        = observe.DeniedSlow        // most calls are slow: an outage, not a tail
	DeniedPaused      = observe.DeniedPaused      // the server pushed back; not over DNS
	DeniedDeadline    = observe.DeniedDeadline    // too little time was left for a hedge to answer
	DeniedInFlight    = observe.DeniedInFlight    // a thousand hedges of the key were in flight, or [MaxDetached] of a Hedger's DoDetached
	DeniedNotReady    = observe.DeniedNotReady    // no connection could carry it, or no copy could be made; not over DNS
	DeniedSameBackend = observe.DeniedSameBackend // gRPC's balancer hedge_elsewhere had no other backend for it, see [Interceptor]
	DeniedAudit       = observe.DeniedAudit       // hedging rests to be measured, or was measured to harm, see [WithAudit]
	DeniedShadow      = observe.DeniedShadow      // it would have been sent, but hedges are only counted, see [WithShadow]
)

// Reasons why no hedge of a call could be sent.
const (
	DeniedWarming  = observe.DeniedWarming  // too little is known
	DeniedDisabled = observe.DeniedDisabled // by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   = observe.DeniedMethod   // nothing says that it is safe to send twice
	DeniedNested   = observe.DeniedNested   // it is made for a hedge, see [Middleware], or hedged above
	DeniedBody     = observe.DeniedBody     // it cannot be sent twice, see [Transport] and [Interceptor.Stream]; not over DNS
)

// The verdicts of an audit.
const (
	AuditTrying  = observe.AuditTrying  // nothing yet: calls are hedged, except in half of all slots of 20 s
	AuditOn      = observe.AuditOn      // hedging helps: calls are hedged
	AuditOff     = observe.AuditOff     // hedging harms: calls are not hedged
	AuditSame    = observe.AuditSame    // no difference was found in an hour: calls are hedged, except in a quarter of all slots
	AuditUnclear = observe.AuditUnclear // more than 1 % of the calls take longer than 6 s, with hedging and without, which is too long to tell: as AuditSame
)
