// Code generated from package observe by go generate ./test/repo; DO NOT EDIT.

package hedge

import "github.com/gohedge/hedge/observe"

// The events that observers receive. The types are those of package observe, which package
// dnshedge uses as well: one Observer serves HTTP, gRPC, functions and DNS.
type (
	// An Observer receives the events of every call of a client, see [WithObserver] and the field Observers of a dnshedge.Client.
	Observer = observe.Observer
	// NopObserver is an Observer whose methods do nothing.
	NopObserver = observe.NopObserver
	// A KeyInfo identifies the client, the host and the route of an event, for example as labels of metrics.
	KeyInfo = observe.KeyInfo
	// An AttemptInfo holds the number of an attempt within its call, which distinguishes hedges from the primary.
	AttemptInfo = observe.AttemptInfo
	// An AttemptResult describes an attempt that has ended: its number, its latency, and whether it won.
	AttemptResult = observe.AttemptResult
	// An Outcome says whether the caller got the result of an attempt ([Won]), got the result of another attempt ([Lost]), or the attempt failed ([Failed]) or was not sent ([Withdrawn]).
	Outcome = observe.Outcome
	// A RequestResult describes a call that has ended: the number of its attempts, the winner, the latency and the saved time.
	RequestResult = observe.RequestResult
	// An EndpointEvent reports to observers that an endpoint was used, has failed, was overtaken, or was ejected or restored.
	EndpointEvent = observe.EndpointEvent
	// An EndpointKind says which event an [EndpointEvent] reports, such as [EndpointCalled], [EndpointFailed] or [EndpointEjected].
	EndpointKind = observe.EndpointKind
	// A Reason says why a hedge was not sent, or why a call could not be hedged.
	Reason = observe.Reason
	// A ClientState is a function that returns the present states of a client's latency keys, in no particular order.
	ClientState = observe.ClientState
	// A KeyState is the present state of one latency key: hedge delay, budget, audit and endpoints.
	KeyState = observe.KeyState
	// An EndpointState says for an endpoint whether it is ejected, which means that calls go to other endpoints.
	EndpointState = observe.EndpointState
	// Clients is a set of clients whose states an [Observer] reads, for example on each scrape of metrics.
	Clients = observe.Clients
	// A Verdict is the conclusion of an audit about a host: whether hedging reduces latency and failures there, see [WithAudit].
	Verdict = observe.Verdict
	// An Audit is the measured effect of hedging on the calls to a host, see [WithAudit].
	Audit = observe.Audit
)

// The outcomes of attempts.
const (
	Won       = observe.Won       // the caller got the result of this attempt; for a primary, this includes a gRPC status that ended the call
	Lost      = observe.Lost      // another attempt has won, and this attempt was usually cancelled; also a hedge that a [Limiter] refused
	Failed    = observe.Failed    // the attempt ended with a failure, even if that ended the call, or the caller cancelled the call
	Withdrawn = observe.Withdrawn // the hedge started, but was not sent, see [DeniedSameBackend] and [DeniedNotReady]
)

// The kinds of events of endpoints.
const (
	EndpointCalled    = observe.EndpointCalled    // a primary was sent to the endpoint
	EndpointHedged    = observe.EndpointHedged    // a hedge was sent to the endpoint
	EndpointFailed    = observe.EndpointFailed    // a primary or hedge at the endpoint failed
	EndpointOvertaken = observe.EndpointOvertaken // a primary or hedge at the endpoint was too slow: a later attempt at another endpoint won, or the caller's deadline passed
	EndpointEjected   = observe.EndpointEjected   // calls go to other endpoints from now on
	EndpointRestored  = observe.EndpointRestored  // calls go to the endpoint again
)

// Reasons why a hedge that was due was not sent.
const (
	DeniedBudget      = observe.DeniedBudget      // the budget or MaxHedgesPerSecond was exhausted
	DeniedSlow        = observe.DeniedSlow        // most calls are slow, which indicates an outage, in which hedges would add load
	DeniedPaused      = observe.DeniedPaused      // the server pushed back; never over DNS
	DeniedDeadline    = observe.DeniedDeadline    // too little time was left before the deadline for a hedge to succeed
	DeniedInFlight    = observe.DeniedInFlight    // the limit of concurrent hedges was reached: a thousand per key, or [MaxDetached] for DoDetached
	DeniedNotReady    = observe.DeniedNotReady    // no connection was ready, or the request could not be copied; never over DNS
	DeniedSameBackend = observe.DeniedSameBackend // the gRPC balancer hedge_elsewhere found no other backend for the hedge, see [Interceptor]
	DeniedAudit       = observe.DeniedAudit       // the audit has paused hedging to measure its effect, or has found that it harms, see [WithAudit]
	DeniedShadow      = observe.DeniedShadow      // shadow mode: the hedge was only counted, see [WithShadow]
)

// Reasons why a call could not be hedged.
const (
	DeniedWarming  = observe.DeniedWarming  // too few calls of the key were measured
	DeniedDisabled = observe.DeniedDisabled // hedging was disabled by SetEnabled, WithoutHedging, a Policy, or settings that allow no hedge
	DeniedMethod   = observe.DeniedMethod   // nothing declares the call safe to send twice
	DeniedNested   = observe.DeniedNested   // the call is made while a server handles a hedge, see [Middleware], or an outer client hedges it already
	DeniedBody     = observe.DeniedBody     // the request cannot be sent twice, see [Transport] and [Interceptor.Stream]; never over DNS
)

// The verdicts of an audit.
const (
	AuditTrying  = observe.AuditTrying  // no result yet: calls are hedged, except in half of all slots of 20 s
	AuditOn      = observe.AuditOn      // hedging helps: calls are hedged
	AuditOff     = observe.AuditOff     // hedging harms: calls are not hedged
	AuditSame    = observe.AuditSame    // an hour has shown no difference: calls are hedged, except in a quarter of all slots
	AuditUnclear = observe.AuditUnclear // more than 1 % of the calls take longer than 6 s, with and without hedging, so the effect cannot be measured: hedged as with AuditSame
)
