// Package hedge cuts tail latency: when a call is slower than usual, it sends a
// second one and takes the first good answer.
//
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}
//
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()))
//
// Without options both are ready for production: they learn the latency of
// each host (HTTP) or method (gRPC) and hedge its slowest tenth, once or twice,
// within a budget of 10 % more requests. [Do] hedges any other function, and
// package dnshedge does the same for DNS.
//
// # What is hedged
//
// Only what is safe to send twice. For HTTP that is the rule by which net/http
// itself repeats requests: GET, HEAD, OPTIONS, TRACE, or an Idempotency-Key.
// For gRPC it is what the method declares, or what its name promises to only
// read. Everything else passes through untouched. See [WithHedgeable],
// [WithMethods], [AllowHedging] and [WithoutHedging].
//
// # What wins
//
// The first success. An error, or a response like 503, never beats an answer
// that is still on its way; if every attempt fails, the caller gets what the
// primary returned, exactly as without this package. A call that fails before
// a hedge was due is not repeated: hedging is not retrying.
//
// # When a hedge starts
//
// The delays follow from what callers of the same key really waited in the last
// seconds: the earliest ones whose whole cost fits the budget. Nothing is hedged
// until ten calls are known, while most calls are slow (an outage is not a
// tail), or while the server pushes back. Hedges that never win are cut to a
// tenth of the budget.
//
// # Chains
//
// Hedging at every layer of a chain of services multiplies. [Middleware] and
// [NewUnaryServerInterceptor] mark what a server does for a hedge, and nothing
// hedges that again; over HTTP, clients tell servers by [WithAttemptHeader].
// Within a process what a hedge does is marked by itself.
//
// # When not to hedge
//
// Hedging does not help where slowness belongs to the request, where the same
// busy server answers both attempts, or where everything is slow. Backends above
// 60 % load that keep working on cancelled calls want a budget of 2 %.
//
// # Operating it
//
// HEDGE_DISABLED=true in the environment makes everything start switched off, as
// if by SetEnabled(false); HEDGE_MODE=observe rehearses, see [WithShadow]. Both are read once, when a
// Transport, Interceptor or Hedger is made. [WithObserver] tells of every attempt;
// the modules hedgeprom and hedgeotel and the package debug show them.
//
// # Cost
//
// A call that needs no hedge costs half a microsecond: no goroutine over HTTP/2
// and gRPC, one over HTTP/1.1. Memory is bounded by [Config.MaxKeys], at a few
// kilobytes per key. There are no background goroutines.
package hedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/engine"
)

// WithoutHedging returns a context whose calls are sent once.
// It works for HTTP, gRPC, [Do], and DNS without a cache: what goes into a cache is
// asked for others as well.
func WithoutHedging(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Never = true })
}

// AllowHedging returns a context whose calls are declared safe to send twice,
// whatever their method. It undoes [WithoutHedging].
func AllowHedging(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Never, o.Allow = false, true })
}

// AwaitFirstByte returns a context whose HTTP responses win with their first
// byte, as with [WithFirstByte].
func AwaitFirstByte(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.First = true })
}

// WithDelay returns a context whose calls are hedged after d, and again after
// each further d, instead of after the learned delays; the budget still decides
// whether. A d of 0 or less returns to the learned delays.
func WithDelay(ctx context.Context, d time.Duration) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Delay = max(d, 0) })
}
