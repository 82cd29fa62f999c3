package hedge

import (
	"context"

	"github.com/gohedge/hedge/internal/funccall"
)

// A Hedger holds the learned latencies and the budgets of the calls of [Do] and [DoDetached]. It is safe for concurrent
// use. The zero Hedger is not usable; call NewHedger.
type Hedger struct {
	controls
	calls funccall.Client
}

// NewHedger returns a Hedger with the default settings and the options. It panics if options contradict each other.
func NewHedger(opts ...FuncOption) *Hedger {
	h := new(Hedger)
	if err := h.init(DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return h
}

// NewHedgerWithConfig returns a Hedger with the settings c, for example from a file. It returns an error if c or an
// option is invalid, or if options contradict each other.
func NewHedgerWithConfig(c Config, opts ...FuncOption) (*Hedger, error) {
	h := new(Hedger)
	if err := h.init(c, opts); err != nil {
		return nil, err
	}
	return h, nil
}

// init applies the settings and the options to a zero Hedger.
func (h *Hedger) init(settings Config, opts []FuncOption) error {
	c := &config{Config: settings}
	applyOptions(c, opts, FuncOption.applyFunc)
	h.calls.Client = &h.client
	return h.initControls("func", c)
}

// Do calls f and, if the call takes longer than usual for key, calls f again concurrently. It returns the first result
// without an error. If all calls fail, it returns the result of the first call. It does so too if the first call has
// failed and the other calls take longer than usual. With a nil h, it calls f once.
//
// f must be safe to run twice at the same time, and must return soon after its context is done. Do returns only when
// the first call has returned, even if another call succeeded earlier. So Do gains nothing if f ignores its context, as
// some database clients do; see [DoDetached]. Such a call is logged once per key, and counted in Stats.HeldBack in
// place of Stats.HedgeWins.
//
// The context of the winning call stays alive until ctx ends, so that the caller can read rows or a body after Do. The
// contexts of the other calls end when Do returns. Unused values are closed if they implement [io.Closer], except nil
// and values equal (==) to the returned value. Return pointers if each value must be closed: structs with the same
// content are equal.
func Do[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.Do(ctx, &h.calls, key, f)
}

// MaxDetached is the maximum number of concurrent calls of f in the [DoDetached] calls of one Hedger, hedges included.
// The first call of f does not count while its caller waits.
const MaxDetached = funccall.MaxDetached

// DoDetached is [Do] for a function f that ignores its context. Each call of f runs in its own goroutine. DoDetached
// returns with the first result without an error, or when ctx is done. In the latter case the error is that of the
// first call of f, if it has failed, or ctx.Err(). Calls of f that are still running continue in the background.
//
// At most [MaxDetached] hedges and background calls of a Hedger run at the same time. Beyond that limit no hedge is
// sent, with the reason [DeniedInFlight], and DoDetached waits for the first call of f even if ctx is done.
//
// A call that is not hedged runs f in the caller's goroutine, and DoDetached waits for it. This applies if h is nil or
// disabled, and if ctx is from [WithoutHedging] or belongs to a hedge.
//
// A value without an error that arrives too late is passed to discard, even if it is equal to the returned value. A nil
// discard closes it as [Do] does. discard runs in other goroutines, also after DoDetached has returned.
//
// Panics in discard and in background calls are recovered, and counted in Stats.HedgePanics. A panic in the first call
// of f is raised again by DoDetached, unless another call has succeeded or DoDetached has returned.
//
// A background call keeps the resources of f, such as a database connection. Make pools larger accordingly.
func DoDetached[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.DoDetached(ctx, &h.calls, key, f, discard)
}
