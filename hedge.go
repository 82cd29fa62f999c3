// Package hedge cuts tail latency. When a call is slower than usual, it sends the call a second time and returns the first
// good answer.
//
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}
//
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()))
//
// Both need no options. They learn the latency of each host (HTTP) or method (gRPC). They hedge the slowest tenth of the
// calls, within a budget of 10 % more requests. [Do] hedges any function, and package dnshedge hedges DNS.
//
// # Options
//
// Every day:
//   - [WithBudgetPercent]: hedges per 100 calls; the default is 10
//   - [WithMaxHedges]: hedges per call; the default is 2
//   - [WithHedgeable]: HTTP requests that are safe to send twice
//   - [WithRoute]: a latency and a [Policy] of their own for some calls of a host
//   - [WithShadow]: a dry run, which decides and counts, and sends no hedge
//   - [WithName]: the name of the client in metrics, logs and the debug page
//   - [WithLogger]: a log of pauses, spent budgets and changed settings
//   - [WithObserver]: metrics and traces, such as those of hedgeprom and hedgeotel
//
// Advanced:
//   - delays: [WithPercentile], [WithMinDelay], [WithMaxDelay], [WithInitialDelay]
//   - budgets: [WithBudget], [WithBurst], [WithEstimatedRPS], [WithMaxHedgesPerSecond]
//   - keys, for which latency is learned: [WithKeyFunc], [WithMaxKeys]
//   - results: [WithAudit], [WithStats]
//   - many settings at once: [WithConfig], [WithOptions]
//   - HTTP answers: [WithFailureStatus], [WithAnswerStatus], [WithFailureFunc]
//   - HTTP bodies: [WithMaxReplayBytes], [WithFirstByte], [WithResume]
//   - HTTP connections: [WithEndpoints], [WithReplicas], [WithHedgeTransport], [WithLinger]
//   - chains of HTTP services: [WithAttemptHeader]
//
// gRPC: [WithMethods] declares methods that are safe to send twice. Advanced are [WithDeclaredMethods], [WithNonFatalCodes],
// [WithAnswerCodes], [WithHedgeConn], [WithHedgeConns] and [WithServiceConfig].
//
// Servers: [NewLimiter] takes [WithUnlimited], [WithLimitedHealthChecks], [WithName], [WithObserver] and [WithLogger].
//
// An option in a wrong place does not compile. Options that contradict each other are an error.
//
// # What is hedged
//
// Only calls that are safe to send twice at the same time: HTTP requests with GET, HEAD, OPTIONS, TRACE and QUERY, and gRPC
// methods that declare to only read or have the name of a read. [WithoutHedging], [AllowHedging] and [WithDelay] decide for
// single calls. A hedge starts at the earliest delay whose cost fits the budget. Nothing is hedged until ten calls are known,
// while most calls are slow (an outage), or while the server pushes back.
//
// # What wins
//
// The first success: status 2xx or 3xx, OK, a nil error. A failed hedge never beats the primary. A failed primary waits for
// its hedges, for as long as they usually take. If every attempt fails, the caller gets the result of the primary. A call
// that fails before a hedge was due is not repeated: hedging is not retrying.
//
// # Chains and servers
//
// [Middleware] and [NewUnaryServerInterceptor] mark the calls that a server makes for a hedge: they are sent once. Of clients around clients, the outer one hedges. A server
// above 60 % load that keeps working on cancelled calls needs a [Limiter], or clients with a budget of 2 %. See
// [Roll out and run].
//
// # Operating it
//
// Two variables of the environment are read once, when a Transport, Interceptor or Hedger is made; neither upper case nor
// spaces around the value matter:
//
//	HEDGE_DISABLED  true, 1, t, yes, y or on   starts switched off, as by SetEnabled(false)
//	                false, 0, f, no, n or off  as the program says
//	HEDGE_MODE      shadow or observe          does what [WithShadow] does
//	                audit                      does what [WithAudit] does
//	                off or disabled            starts switched off
//	                normal, on or hedge        as the program says
//
// Any other value sends no hedges, and is logged. A call that needs no hedge costs half a microsecond over HTTP/2 and gRPC,
// and one and a half over HTTP/1.1. With -tags hedge_nogrpc, a program is built without grpc.
//
// [Roll out and run]: https://github.com/gohedge/hedge/blob/main/docs/rollout.md
package hedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// ErrLost is why an attempt was cancelled that another one beat: the cause of its context
// (see [context.Cause]), and over HTTP/1.1 its error. errors.Is(ErrLost, context.Canceled)
// holds. Callers never see it. What stands below the hedging does, and should not count it
// as a failure: circuit breakers, retries, outlier detection and traces. HTTP/2 and gRPC
// return an error of their own for a cancelled context, so look at the cause:
//
//	lost := errors.Is(context.Cause(req.Context()), hedge.ErrLost)
var ErrLost = race.ErrLost

// WithoutHedging returns a context whose calls are sent once. It works for HTTP,
// gRPC, [Do], and DNS without a cache: a question whose answer goes into a cache is
// asked for other callers as well.
func WithoutHedging(ctx context.Context) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Never = true })
}

// AllowHedging returns a context whose calls are declared safe to send twice,
// whatever their method. It undoes [WithoutHedging]. It holds for the calls that are
// made with this context, not for those made in their course, by the function of [Do],
// or by a transport, interceptor or credentials below; [WithoutHedging] holds for those as well.
func AllowHedging(ctx context.Context) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Never, o.Allow = false, true })
}

// WithDelay returns a context whose calls are hedged after d, and again after
// each further d, instead of after the learned delays; the budget still decides
// whether. A d of 0 or less returns to the learned delays. Like [AllowHedging], it
// does not hold for calls that are made in the course of these.
func WithDelay(ctx context.Context, d time.Duration) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Delay = max(d, 0) })
}

// AttemptFromContext returns the attempt that ctx belongs to. It is for transports,
// interceptors and functions below. If one hedged call is made within another, it
// is the inner one's attempt. It reports false for calls that are sent once.
func AttemptFromContext(ctx context.Context) (AttemptInfo, bool) {
	n, ok := race.AttemptNumber(ctx)
	return AttemptInfo{Number: n}, ok
}
