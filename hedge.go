// Package hedge cuts tail latency. When a call is slower than usual, it sends the call a second time and returns the first
// successful response.
//
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}
//
//	hedged := hedge.NewInterceptor()
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithChainUnaryInterceptor(hedged.Unary()), grpc.WithChainStreamInterceptor(hedged.Stream()))
//
// Both work without options. They measure the latency of each host (HTTP) or method (gRPC), and hedge about the slowest
// tenth of the calls: all hedges together are at most 10 % more requests. [Do] hedges any function, and package dnshedge
// hedges DNS. The [Glossary] has the terms.
//
// # Options
//
// Every day:
//   - [WithBudgetPercent]: hedges per 100 calls; the default is 10
//   - [WithMaxHedges]: hedges per call; the default is 2
//   - [WithHedgeable]: HTTP requests that are safe to send twice
//   - [WithRoute]: a separate latency and [Policy] for some calls of a host
//   - [WithShadow]: a dry run, which decides and counts, and sends no hedge
//   - [WithName]: a name of the client, for metrics, logs and the debug page
//   - [WithLogger]: a log of pauses, exhausted budgets and changes
//   - [WithObserver]: metrics and traces, for example by hedgeprom and hedgeotel
//
// Advanced:
//   - delays: [WithPercentile], [WithMinDelay], [WithMaxDelay], [WithInitialDelay]
//   - budgets: [WithBudget], [WithBurst], [WithEstimatedRPS], [WithMaxHedgesPerSecond]
//   - latency keys: [WithKeyFunc], [WithMaxKeys]
//   - results: [WithAudit] (measures what hedging changes), [WithStats]
//   - many settings at once: [WithConfig], [WithOptions]
//   - HTTP responses: [WithFailureStatus], [WithAnswerStatus], [WithFailureFunc]
//   - HTTP bodies: [WithMaxReplayBytes], [WithFirstByte], [WithResume]
//   - HTTP connections and headers: [WithEndpoints], [WithReplicas], [WithHedgeTransport], [WithLinger],
//     [WithAttemptHeader]
//   - gRPC methods: [WithMethods], [WithDeclaredMethods]
//   - gRPC codes: [WithNonFatalCodes], [WithAnswerCodes]
//   - gRPC connections: [WithHedgeConn], [WithHedgeConns], [WithServiceConfig]
//   - servers, with [NewLimiter]: [WithUnlimited], [WithLimitedHealthChecks]
//
// An option that a constructor does not support does not compile. If options contradict each other, [New] panics, and
// [NewWithConfig] returns an error.
//
// # What is hedged
//
// Only calls that are safe to send twice at the same time: HTTP requests with GET, HEAD, OPTIONS, TRACE and QUERY, and gRPC
// methods that are declared as read-only or have the name of a read. [WithoutHedging], [AllowHedging] and [WithDelay]
// change this for single calls.
// The hedge delay is the shortest delay for which the budget suffices. Calls are not hedged until ten calls of their key
// have been measured. Hedging is paused while most calls are slow (an outage), and while the server pushes back (429, 503).
//
// # What wins
//
// The first success: status 2xx or 3xx, OK, a nil error. If the primary fails while hedges run, the call waits for them, for at
// most the 99th percentile. If all fail, the caller gets the result of the primary. If the primary fails before the first hedge
// delay, no hedge is sent: hedging does not replace retries.
//
// # Chains and servers
//
// While a server handles a hedge, its own calls should not be hedged; [Middleware] and [NewUnaryServerInterceptor]
// ensure that. If one hedged client calls another one, only the outer client hedges. A server that continues to work on
// cancelled calls, and is busy for more than 60 % of the time, needs a [Limiter].
//
// # Operating it
//
// Three environment variables are read when a Transport, Interceptor or Hedger is made. Upper case and surrounding spaces are
// ignored:
//
//	HEDGE_DISABLED        true, 1, t, yes, y or on   starts disabled, as by SetEnabled(false)
//	                      false, 0, f, no, n or off  no effect
//	HEDGE_MODE            shadow or observe          both do what [WithShadow] does
//	                      audit                      does what [WithAudit] does
//	                      off or disabled            starts disabled
//	                      normal, on or hedge        sends hedges, also with the options for shadow mode and audits
//	HEDGE_BUDGET_PERCENT  a number from 0 to 400     does what [WithBudgetPercent] does
//
// Any other value disables hedging, and is logged. Package steering reads settings from a file, also while the program runs.
//
// Without a hedge, the overhead per call is 0.5 µs over HTTP/2 and gRPC, and 1.5 µs over HTTP/1.1. With -tags
// hedge_nogrpc, a program is built without grpc.
//
// [Glossary]: https://github.com/gohedge/hedge/blob/main/docs/start.md
package hedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// ErrLost is the cancellation cause (see [context.Cause]) of an attempt's context if another attempt of the same call
// has won. Over HTTP/1.1, it is also the error that the attempt returns. errors.Is(ErrLost, context.Canceled) is true.
//
// Callers of a hedged client never get ErrLost. Code that the hedging wraps, such as circuit breakers, retries, outlier
// detection and traces, should not count it as a failure. HTTP/2 and gRPC return their own error for a cancelled
// context, so check the cause:
//
//	lost := errors.Is(context.Cause(req.Context()), hedge.ErrLost)
var ErrLost = race.ErrLost

// WithoutHedging returns a copy of ctx with which calls are sent without hedges. It applies to HTTP, gRPC, [Do], and
// DNS without a cache. It has no effect on DNS with a cache, because several callers may wait for the same response.
func WithoutHedging(ctx context.Context) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Never = true })
}

// AllowHedging returns a copy of ctx that declares its calls safe to send twice, whatever their HTTP or gRPC method is.
// It also cancels the effect of [WithoutHedging] on ctx.
//
// AllowHedging applies only to calls that are made directly with the returned context. Calls that are made while an
// attempt runs, for example by the function of [Do], a wrapped transport or gRPC credentials, are not declared safe.
// [WithoutHedging], in contrast, applies to these calls too.
func AllowHedging(ctx context.Context) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Never, o.Allow = false, true })
}

// WithDelay returns a copy of ctx with which calls are hedged after the delays d, 2d, 3d and so on, if the budget
// allows. These delays replace the learned delays. If d is 0 or less, the learned delays apply.
//
// Like [AllowHedging], WithDelay applies only to calls that are made directly with the returned context.
func WithDelay(ctx context.Context, d time.Duration) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Delay = max(d, 0) })
}

// MarkRetry returns a copy of ctx that marks its calls as retries: each repeats a call that has failed. A call with this mark
// deposits no tokens in a hedge budget, so that retries cannot pay for further retries and hedges. It is hedged and
// learned from like any other call.
//
// A retrier that shares a [Budget] with hedges marks every retry, and pays for it with [Budget.Spend]. Marked calls are
// counted in Stats.Retries, and observers find IsRetry in their [AttemptInfo] and [RequestResult].
//
// Like [WithoutHedging], the mark also applies to calls that are made while an attempt runs. It is not sent to servers, and
// has no effect on DNS.
func MarkRetry(ctx context.Context) context.Context {
	return race.WithOverrides(ctx, func(o *race.Overrides) { o.Retry = true })
}

// AttemptFromContext returns the attempt to which ctx belongs. Transports, interceptors and functions that the
// hedging wraps can use it, for example to log the number of the attempt. ctx must be the context of the attempt, or
// derived from it.
//
// If ctx belongs to nested hedged calls, AttemptFromContext returns the attempt of the innermost call. The bool is
// false if the call is not hedged.
func AttemptFromContext(ctx context.Context) (AttemptInfo, bool) {
	n, ok := race.AttemptNumber(ctx)
	return AttemptInfo{Number: n, IsRetry: ok && n == 0 && race.OverridesFrom(ctx).Retry}, ok
}
