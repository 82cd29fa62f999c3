// Package funccall makes the calls of functions that may be hedged: the implementation of hedge.Do and hedge.DoDetached, which document the behaviour.
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

// A Client makes calls of functions. It is safe for concurrent use. The embedded Client must be set before the first call.
type Client struct {
	*calls.Client
	calls    sync.Pool    // of *call[T], for every T
	detached atomic.Int64 // slots in use, see [MaxDetached]
}

// MaxDetached is the number of slots of a Client, which limit the hedges and the abandoned attempts of DoDetached in flight.
const MaxDetached = 64

// Do calls f, and calls it again concurrently if the first call takes longer than usual for the key. It returns the first result without an
// error, but waits for the first call of f to return.
func Do[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error)) (T, error) {
	if reason := h.IneligibleReason(race.OverridesFrom(ctx), h.CountCall()); reason != policy.None {
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

// DoDetached does the same as Do, but does not wait for the first call of f. It returns with the first result without an error, or when ctx
// ends. Later results go to discard. If discard is nil, they are closed if they are io.Closers.
func DoDetached[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if reason := h.IneligibleReason(race.OverridesFrom(ctx), h.CountCall()); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c := &detachedCall[T]{discard: discard}
	c.f, c.client = f, h
	c.beginCall(ctx, key)
	c.race.Style.Async, c.race.Style.TryAbandon = true, c.tryAbandon
	return c.sendHedged(ctx, c)
}

// CallOnce calls f once. The context of f lacks the Overrides that apply to a single call.
func CallOnce[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	once, _ := race.SingleAttemptContext(ctx)
	return f(once)
}

// sendOnce makes a call that may not be hedged for the given reason.
func sendOnce[T any](ctx context.Context, h *Client, key string, reason observe.Reason, f func(context.Context) (T, error)) (T, error) {
	p := h.Policy.BeginUnhedged(ctx, policy.Name{Host: key}, reason)
	v, err := CallOnce(ctx, f)
	p.End(err == nil)
	return v, err
}

// A call is one call of Do in flight. It implements [race.Op].
//
// Do writes the fields before the race begins, and attempts read them. Each hedge writes its own element of contexts before it returns. Do
// only reads the element of the winner.
type call[T any] struct {
	policy.Call
	race     race.Race[T] // asynchronous if the call is detached; a detached call is not used again, because attempts may outlive it
	client   *Client
	f        func(context.Context) (T, error)
	contexts [1 + race.MaxHedges]*attemptctx.Context

	primarySucceeded    bool         // the first call of f returned without an error; written by the goroutine of Do; not used if the call is detached
	hedgeSucceededAfter atomic.Int64 // time from the start to the first success of a hedge, in nanoseconds; 0: none
}

// beginCall begins the call and returns its hedge schedule; nil if no hedge can become due.
func (c *call[T]) beginCall(ctx context.Context, key string) *policy.Schedule {
	h := c.client
	if name := (policy.Name{Host: key}); !c.Key.IsCurrent(name) {
		c.Key = h.Policy.Key(name)
	}
	schedule := c.Begin(ctx, c.Key, race.OverridesFrom(ctx).Delay)
	if schedule == nil {
		h.Counters.WarmupRequests.Add(1)
	}
	return schedule
}

// sendWithoutHedges makes a call that has no schedule, and records its latency.
func (c *call[T]) sendWithoutHedges(ctx context.Context) (T, error) {
	c.AttemptStarted(ctx, 0)
	v, err := CallOnce(ctx, c.f)
	c.AttemptEnded(ctx, 0, race.OutcomeOf(err))
	c.End(policy.Outcome{Answered: err == nil})
	c.freeCall()
	return v, err
}

// sendHedged makes the call, and hedges it according to its schedule.
func (c *call[T]) sendHedged(ctx context.Context, op race.Op[T]) (T, error) {
	c.contexts[0] = attemptctx.NewPrimary()
	style := &c.race.Style
	style.Observer, style.Primary, style.FreshTimer = c.AttemptObserver(), c.contexts[0].Attempt(), c.InBubble()
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

// isDelayedByPrimary reports whether the result of the winning hedge was delayed by the wait for the first call of f. It is true if the
// call took twice as long as the hedge. If the first call succeeded as well, a quarter longer suffices. It must be called after the race.
func (c *call[T]) isDelayedByPrimary() bool {
	answered, took := time.Duration(c.hedgeSucceededAfter.Load()), c.Elapsed()
	return !c.isDetached() && answered > 0 && (took >= 2*answered || c.primarySucceeded && took >= answered+answered/4)
}

// isDetached reports whether DoDetached made the call.
func (c *call[T]) isDetached() bool { return c.race.Style.Async }

// freeCall clears the call and puts it back into the pool.
func (c *call[T]) freeCall() {
	c.ClearReferences()
	c.primarySucceeded = false
	c.hedgeSucceededAfter.Store(0)
	c.f, c.contexts = nil, [1 + race.MaxHedges]*attemptctx.Context{}
	c.client.calls.Put(c)
}

// Attempt calls f with the context of attempt n.
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

// Discard closes the result of a loser if it is an io.Closer and differs from the result of the winner.
func (c *call[T]) Discard(v T, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.client.Counters.HedgePanics.Add(1)
		return
	}
	closer, ok := any(v).(io.Closer)
	if !ok || err != nil || isNil(v) || c.isWinner(v) {
		return
	}
	defer c.countPanic()
	_ = closer.Close() // the call is over, so no caller can get the error
}

// isWinner reports whether v equals the value of the winner. It is false for types that are not comparable.
func (c *call[T]) isWinner(v any) (same bool) {
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

// countPanic recovers a panic of a function of the program and counts it. It must be deferred: on a goroutine of this package, the panic
// would end the process.
func (c *call[T]) countPanic() {
	if recover() != nil {
		c.client.Counters.HedgePanics.Add(1)
	}
}

// A detachedCall is a call of DoDetached. Its attempts may outlive it.
type detachedCall[T any] struct {
	call[T]
	discard func(T)
	ended   atomic.Int32 // number of calls of releaseSlot
}

// Admit decides whether a hedge starts, which needs one of the MaxDetached slots. A call with n hedges holds n slots for its n+1 attempts,
// because the caller waits for one of them. So the first attempt that ends frees no slot, and each further one frees a slot. If the caller
// returns before any attempt has ended, its return counts as the first end.
func (c *detachedCall[T]) Admit(index int) bool {
	slots, reason, admitted := &c.client.detached, policy.None, false
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

// Ended frees the slot of a hedge, even if its Attempt was not called.
func (c *detachedCall[T]) Ended(n int) {
	c.call.Ended(n)
	c.releaseSlot()
}

// Attempt calls f with the context of attempt n. After the first call of f, it releases a slot.
func (c *detachedCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		defer c.releaseSlot()
	}
	return c.call.Attempt(a, n)
}

// tryAbandon takes a slot for the primary when the caller returns before it, unless another attempt has ended before. It reports false if
// no slot is free. The caller must wait then.
func (c *detachedCall[T]) tryAbandon() bool {
	if slots := &c.client.detached; slots.Add(1) > MaxDetached && c.ended.Load() == 0 {
		slots.Add(-1)
		return false
	}
	c.releaseSlot()
	return true
}

// releaseSlot records that an attempt has ended or that the caller has returned early. It frees a slot, except at the first call.
func (c *detachedCall[T]) releaseSlot() {
	if c.ended.Add(1) > 1 {
		c.client.detached.Add(-1)
	}
}

// Discard passes the result of a loser to the discard function of the caller, or closes it if there is none.
func (c *detachedCall[T]) Discard(v T, err error) {
	if err != nil || c.discard == nil {
		c.call.Discard(v, err)
		return
	}
	defer c.countPanic()
	c.discard(v)
}
