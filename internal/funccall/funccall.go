// Package funccall implements hedge.Do and hedge.DoDetached, which hedge calls of functions. These functions document the
// behaviour.
package funccall

import (
	"context"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/attemptctx"
	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Client makes hedged calls of functions. The embedded Client must be set before the first call. A Client is safe for
// concurrent use.
type Client struct {
	*calls.Client
	calls      sync.Pool    // calls for reuse: *call[T] for every T
	slotsInUse atomic.Int64 // number of slots in use, see [MaxDetached]
}

// MaxDetached is the maximum number of attempts of DoDetached, per Client, that run in addition to the one for which each
// caller waits. Hedges and abandoned attempts count.
const MaxDetached = 64

// Do calls f, and calls f again concurrently if the first call takes longer than usual for the key. When one call has
// succeeded, Do cancels the other calls, waits until the first call of f has returned, and returns the result of the
// successful call.
func Do[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error)) (T, error) {
	o := race.OverridesFrom(ctx)
	if reason := h.IneligibleReason(o, h.CountCall(o.Retry)); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c, ok := h.calls.Get().(*call[T])
	if !ok {
		c = new(call[T])
	}
	c.f, c.client = f, h
	if schedule := c.beginCall(ctx, key); schedule == nil {
		return c.sendWithoutHedges(ctx)
	}
	return c.sendHedged(ctx, c)
}

// DoDetached does the same as Do, but does not wait for the first call of f to return. It returns the first result without an
// error, or returns when ctx ends.
//
// Each later result without an error is passed to discard. If discard is nil, the result is closed if it is an io.Closer.
func DoDetached[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	o := race.OverridesFrom(ctx)
	if reason := h.IneligibleReason(o, h.CountCall(o.Retry)); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c := &detachedCall[T]{discard: discard}
	c.f, c.client = f, h
	c.beginCall(ctx, key)
	c.race.Style.Async, c.race.Style.TryAbandon = true, c.tryAbandon
	return c.sendHedged(ctx, c)
}

// CallOnce calls f without hedges. The context of f has the values of ctx, except for the Overrides that apply to one call
// only.
func CallOnce[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	once, _ := race.SingleAttemptContext(ctx)
	return f(once)
}

// sendOnce calls f without hedges, because the call may not be hedged for the given reason. It reports the call and the reason
// to observers.
func sendOnce[T any](ctx context.Context, h *Client, key string, reason observe.Reason, f func(context.Context) (T, error)) (T, error) {
	p := h.Policy.BeginUnhedged(ctx, policy.Name{Host: key}, reason)
	v, err := CallOnce(ctx, f)
	p.End(err == nil)
	return v, err
}

// A call is the state of one call of Do while it runs. It implements [race.Op].
//
// Do writes the fields before the race starts, and attempts only read them. The exception is contexts: each hedge writes its
// own element before it returns, and Do reads only the element of the winner.
type call[T any] struct {
	policy.Call
	// race runs the attempts. It is asynchronous for DoDetached. A call of DoDetached is not used again, because attempts may
	// outlive it.
	race     race.Race[T]
	client   *Client                                 // client that makes the call
	f        func(context.Context) (T, error)        // function of the caller
	contexts [1 + race.MaxHedges]*attemptctx.Context // context of each attempt, by attempt number

	// primarySucceeded is true if the first call of f returned without an error. The goroutine of Do writes it. DoDetached does
	// not use it.
	primarySucceeded    bool
	hedgeSucceededAfter atomic.Int64 // nanoseconds from the start of the call to the first success of a hedge; 0: no hedge has succeeded
}

// beginCall starts the call on the given latency key, and returns the schedule of its hedges. It returns nil if the call is not
// hedged.
func (c *call[T]) beginCall(ctx context.Context, key string) *policy.Schedule {
	h, o := c.client, race.OverridesFrom(ctx)
	c.IsRetry = o.Retry
	if name := (policy.Name{Host: key}); !c.Key.IsCurrent(name) {
		c.Key = h.Policy.Key(name)
	}
	schedule := c.Begin(ctx, c.Key, o.Delay)
	if schedule == nil {
		h.Counters.WarmupRequests.Add(1)
	}
	return schedule
}

// sendWithoutHedges calls f without hedges, because the call has no schedule, and records the latency.
func (c *call[T]) sendWithoutHedges(ctx context.Context) (T, error) {
	c.AttemptStarted(ctx, 0)
	v, err := CallOnce(ctx, c.f)
	c.AttemptEnded(ctx, 0, race.OutcomeOf(err))
	c.End(policy.Outcome{Answered: err == nil})
	c.freeCall()
	return v, err
}

// sendHedged runs the race of op, with hedges at the delays of the call's schedule, and records the outcome.
func (c *call[T]) sendHedged(ctx context.Context, op race.Op[T]) (T, error) {
	c.contexts[0] = attemptctx.NewPrimary()
	style := &c.race.Style
	style.Observer, style.Primary, style.FreshTimer = c.AttemptObserver(), c.contexts[0].Attempt(), c.IsInBubble()
	out := c.race.Run(ctx, op, c.RaceSchedule())
	outcome := policy.Outcome{Answered: out.Winner >= 0, Winner: out.Winner, HeldBack: out.Winner > 0 && c.isDelayedByPrimary()}
	if outcome.HeldBack {
		c.client.Log.LogHeldBack(c.Key.Name.Host)
	}
	c.client.EndCall(&c.Call, outcome)
	switch {
	case out.Winner >= 0:
		c.contexts[out.Winner].MarkWon()
	case out.Attempt != nil:
		out.Attempt.Release()
	}
	if !c.isDetached() && c.race.Reset() {
		c.freeCall()
	}
	return out.Value, out.Err
}

// isDelayedByPrimary reports whether Do returned the result of a hedge late, because the first call of f did not return
// when it was cancelled. It must only be called after the race. It is false for DoDetached, which does not wait for the
// first call.
//
// Do is late if it took at least twice as long as the hedge. If the first call succeeded, it has probably ignored its
// cancellation. Then 1.25 times as long is enough.
func (c *call[T]) isDelayedByPrimary() bool {
	answered, took := time.Duration(c.hedgeSucceededAfter.Load()), c.Elapsed()
	return !c.isDetached() && answered > 0 && (took >= 2*answered || c.primarySucceeded && took >= answered+answered/4)
}

// isDetached reports whether the call was made by DoDetached.
func (c *call[T]) isDetached() bool { return c.race.Style.Async }

// freeCall clears the call and puts it back into the pool. The call must not be used after that.
func (c *call[T]) freeCall() {
	c.ClearReferences()
	c.primarySucceeded = false
	c.hedgeSucceededAfter.Store(0)
	c.f, c.contexts = nil, [1 + race.MaxHedges]*attemptctx.Context{}
	c.client.calls.Put(c)
}

// Attempt implements [race.Op]. It calls f with the context of attempt n.
func (c *call[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		v, err := c.f(c.contexts[0])
		if !c.isDetached() {
			c.primarySucceeded = err == nil
		}
		return v, err
	}
	c.contexts[n] = attemptctx.New(a)
	v, err := c.f(c.contexts[n])
	if err == nil {
		c.hedgeSucceededAfter.CompareAndSwap(0, int64(c.Elapsed()))
	}
	return v, err
}

// Discard implements [race.Op]. It closes the result of a loser if that is an io.Closer and differs from the result of the
// winner. It counts attempts that panicked.
func (c *call[T]) Discard(v T, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.client.Counters.HedgePanics.Add(1)
		return
	}
	closer, ok := any(v).(io.Closer)
	if !ok || err != nil || isNil(v) || c.isWinningResult(v) {
		return
	}
	defer c.countPanic()
	_ = closer.Close() // the call is over, so no caller can get the error
}

// isWinningResult reports whether v is the result that the winner returned, so that a loser's equal result must not be closed.
// It is false if no attempt has won, or if the values cannot be compared.
func (c *call[T]) isWinningResult(v any) (same bool) {
	defer func() { _ = recover() }() // a runtime error, if the type cannot be compared
	won, ok := c.race.Winner()
	return ok && v == any(won)
}

// isNil reports whether v is a nil pointer, map, slice, function or channel.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}

// countPanic recovers and counts a panic of a function that the program has supplied. It must be deferred: in a goroutine of
// this package, the panic would otherwise end the process.
func (c *call[T]) countPanic() {
	if recover() != nil {
		c.client.Counters.HedgePanics.Add(1)
	}
}

// A detachedCall is the state of one call of DoDetached. Attempts may continue after the call has returned.
type detachedCall[T any] struct {
	call[T]
	discard func(T)      // function of the caller that gets later results; may be nil
	ended   atomic.Int32 // number of calls of releaseSlot
}

// Admit implements [race.Op]: it decides whether a hedge starts. The hedge needs one of the MaxDetached slots.
//
// A call with n hedges has n+1 attempts, but uses only n slots, because its caller waits for one attempt. Therefore the
// first attempt that ends frees no slot, and each later one frees a slot. If the caller returns before any attempt has
// ended, that counts as the first end.
func (c *detachedCall[T]) Admit(index int) bool {
	slots, reason, admitted := &c.client.slotsInUse, policy.None, false
	if slots.Add(1) > MaxDetached {
		reason = observe.DeniedInFlight
	}
	defer func() {
		if !admitted {
			slots.Add(-1)
		}
	}()
	admitted = c.AdmitRequest(index, policy.HedgeRequest{}, reason)
	return admitted
}

// Ended implements [race.Op]. It frees the slot of a hedge, even if Attempt was not called for that hedge.
func (c *detachedCall[T]) Ended(n int) {
	c.call.Ended(n)
	c.releaseSlot()
}

// Attempt implements [race.Op]. It calls f with the context of attempt n. When the primary returns, it calls releaseSlot.
func (c *detachedCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		defer c.releaseSlot()
	}
	return c.call.Attempt(a, n)
}

// tryAbandon decides whether the call may return before its primary has ended. The primary then runs on in a slot,
// unless another attempt has already ended. If no slot is free, tryAbandon returns false, and the caller must wait for
// the primary.
func (c *detachedCall[T]) tryAbandon() bool {
	if slots := &c.client.slotsInUse; slots.Add(1) > MaxDetached && c.ended.Load() == 0 {
		slots.Add(-1)
		return false
	}
	c.releaseSlot()
	return true
}

// releaseSlot frees the slot of an attempt that has ended. It is also called when the caller returns before the
// primary. The first call frees no slot, for the reason that Admit describes.
func (c *detachedCall[T]) releaseSlot() {
	if c.ended.Add(1) > 1 {
		c.client.slotsInUse.Add(-1)
	}
}

// Discard implements [race.Op]. It passes the result of a loser to the caller's function discard, or closes it if discard is
// nil.
func (c *detachedCall[T]) Discard(v T, err error) {
	if err != nil || c.discard == nil {
		c.call.Discard(v, err)
		return
	}
	defer c.countPanic()
	c.discard(v)
}
