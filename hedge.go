// Package hedge cuts tail latency: when a call is slower than usual, it sends a
// second one and takes the first good answer.
//
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}
//
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()))
//
// Both work without options. They learn the latency of each host (HTTP) or method
// (gRPC), and send hedges for the slowest tenth of the calls, once or twice, within
// a budget of 10 % more requests. [Do] hedges any other function, and package
// dnshedge does the same for DNS.
//
// # What is hedged
//
// Only what is safe to send twice, at the same time. For HTTP that is what only
// reads: GET, HEAD, OPTIONS, TRACE and QUERY. An Idempotency-Key alone is not enough:
// it lets a request be repeated after it failed, not beside the first. For
// gRPC it is what the method declares, or a name that promises to only read.
// Everything else is sent once, as it is. See [WithHedgeable], [WithMethods],
// [AllowHedging] and [WithoutHedging].
//
// # What wins
//
// The first success: status 2xx or 3xx, OK, a nil error. Whatever else a hedge brings is
// dropped, so that it never beats an answer of the primary that is still on its way;
// [WithAnswerStatus] and [WithAnswerCodes] name exceptions. What the primary answers ends
// the call, but a failure, such as an error or 503, waits for hedges for about as long as
// they usually take. If every attempt fails, the caller gets what the primary returned,
// exactly as without this package. A call that fails before a hedge was due is not repeated:
// hedging is not retrying.
//
// # When a hedge starts
//
// The delays follow from what callers of the same key waited in the last seconds:
// they are the earliest ones whose whole cost fits the budget. Nothing is hedged
// until ten calls are known, while most calls are slow (that is an outage), or
// while the server pushes back. If hedges never win, they get a tenth of the
// budget.
//
// # Chains
//
// If every layer of a chain of services hedges, the requests multiply.
// [Middleware] and [NewUnaryServerInterceptor] recognise requests that are hedges,
// and what a server does for one of them is not hedged again. gRPC clients tell
// servers by themselves; HTTP clients do so with [WithAttemptHeader]. Of hedging around
// hedging, as by Wrap(Wrap(c)), the outer one hedges; the inner one sends calls to the
// same host, or of the same method, once, and logs that, see [WithLogger].
//
// # When not to hedge
//
// Hedging does not help where the request itself is slow, where the same busy
// server answers both attempts, or where everything is slow. A server that
// is loaded above 60 % and keeps working on cancelled calls gets a [Limiter] before its
// handlers; where that cannot be, set a budget of 2 %. The page [Roll out and run] says more, and how to begin.
//
// # Operating it
//
// Two variables of the environment are read once, when a Transport, Interceptor or
// Hedger is made; neither upper case nor spaces around the value matter:
//
//	HEDGE_DISABLED  true, 1, t, yes, y or on   starts switched off, as by SetEnabled(false)
//	                false, 0, f, no, n or off  as the program says
//	HEDGE_MODE      shadow or observe          does what [WithShadow] does
//	                audit                      does what [WithAudit] does
//	                off or disabled            starts switched off
//	                normal, on or hedge        as the program says
//
// Any other value sends no hedges, and a warning is logged (see [WithLogger]):
// HEDGE_DISABLED then switches off, HEDGE_MODE is then shadow. [WithObserver] tells of
// every attempt; the modules hedgeprom and hedgeotel and the package debug show them.
//
// # Cost
//
// A call that needs no hedge costs some half a microsecond over HTTP/2 and gRPC, where it
// starts no goroutine, and one and a half over HTTP/1.1, where it starts one. Memory is
// bounded by [Config.MaxKeys], at a few kilobytes per key. There are no background goroutines.
//
// # Without gRPC
//
// A program that makes no gRPC calls is smaller if it is built with -tags hedge_nogrpc, which
// leaves out what has to do with gRPC, and grpc itself. The rest is the same.
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
	n, ok := race.Number(ctx)
	return AttemptInfo{Number: n}, ok
}
