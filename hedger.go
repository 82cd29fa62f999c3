package hedge

import (
	"context"

	"github.com/gohedge/hedge/internal/funccall"
)

// A Hedger holds the learned latencies and the budgets of the functions that [Do] and [DoDetached] hedge. The functions
// are distinguished by the keys that are passed to Do. It is safe for concurrent use. The zero Hedger is not usable;
// call NewHedger.
type Hedger struct {
	controls
	calls funccall.Client
}

// NewHedger returns a Hedger with the default settings and the given options. It panics if options contradict each
// other.
func NewHedger(opts ...FuncOption) *Hedger {
	h := new(Hedger)
	if err := h.init(DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return h
}

// NewHedgerWithConfig is [NewHedger] with the settings c, for example from a file, in place of [DefaultConfig]. It
// returns an error if c is invalid or contradicts an option. The error names the field and its value.
func NewHedgerWithConfig(c Config, opts ...FuncOption) (*Hedger, error) {
	h := new(Hedger)
	if err := h.init(c, opts); err != nil {
		return nil, err
	}
	return h, nil
}

// init applies the settings and the options to a zero Hedger. It returns an error if a setting is invalid or options
// contradict each other.
func (h *Hedger) init(settings Config, opts []FuncOption) error {
	c := &constructorOptions{Config: settings}
	applyOptions(c, opts, FuncOption.applyFunc)
	h.calls.Client = &h.client
	if err := h.initControls("func", c); err != nil {
		return err
	}
	h.reportClient()
	return nil
}

// Do calls f and, if that call takes longer than usual for key, calls f again concurrently. It returns the first
// result without an error. Calls with the same key, such as the name of a query, share their latencies and a budget.
// With a nil h, Do calls f once.
//
// If all calls of f fail, Do returns the result of the first call. It also returns that result if the first call has
// failed and the other calls take longer than usual.
//
// f must be safe to run twice at the same time, and must return soon after its context is done. Do returns only when
// the first call of f has returned, even if another call succeeded earlier.
//
// If f ignores its context, as some database clients do, Do gains nothing; use [DoDetached] for such functions. A
// success that was held back in this way is counted in Stats.HeldBack in place of Stats.HedgeWins, and logged once
// per key.
//
// The context of the winning call stays alive until ctx ends, so that the caller can read rows or a body after Do has
// returned. The contexts of the other calls end when Do returns.
//
// Values that Do does not return are closed if they implement [io.Closer], except nil and values equal (==) to the
// returned value. If each value must be closed, f should return pointers, because structs with the same content are
// equal.
func Do[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.Do(ctx, &h.calls, key, f)
}

// MaxDetached limits the number of calls of f that run at the same time for the [DoDetached] calls of one Hedger,
// hedges included. The first call of f does not count while DoDetached waits for it.
const MaxDetached = funccall.MaxDetached

// DoDetached is [Do] for a function f that ignores its context. Each call of f runs in its own goroutine. DoDetached
// returns with the first result without an error, or when ctx is done.
//
// If ctx is done, the error is the error of the first call of f if that has failed, and ctx.Err() otherwise. Calls of f
// that are still running continue in the background.
//
// At most [MaxDetached] hedges and background calls of a Hedger run at the same time. At this limit, no hedges are
// sent, with the reason [DeniedInFlight], and DoDetached waits for the first call of f even if ctx is done.
//
// A call that is not hedged runs f in the caller's goroutine, and DoDetached waits for it. This applies if h is nil or
// disabled, and if ctx is from [WithoutHedging] or belongs to a hedge.
//
// A call of f may return a value without an error after DoDetached has returned another result. Then the value is
// passed to discard, even if both values are equal. With a nil discard, the value is closed as [Do] does. discard runs
// in other goroutines, also after DoDetached has returned.
//
// Panics in discard and in background calls are recovered, and counted in Stats.HedgePanics. If the first call of f
// panics, DoDetached panics with the same value, unless another call has succeeded or DoDetached has returned.
//
// A background call keeps the resources of f, such as a database connection. Make pools larger accordingly.
func DoDetached[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.DoDetached(ctx, &h.calls, key, f, discard)
}
