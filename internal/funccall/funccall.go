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

// A Client makes calls of functions. It is safe for concurrent use. Its Client is set before the first call.
type Client struct {
	*calls.Client
	calls    sync.Pool    // of *call[T], for any T
	detached atomic.Int64 // hedges of DoDetached in flight, or attempts left behind in exchange for one
}

// MaxDetached is the most hedges and abandoned attempts of DoDetached that a Client has in flight.
const MaxDetached = 64

// Do makes a call of f under a key. It returns after the first attempt has returned.
func Do[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error)) (T, error) {
	if reason := h.IneligibleReason(race.OverridesFrom(ctx), h.CountCall()); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c, ok := h.calls.Get().(*call[T])
	if !ok {
		c = new(call[T])
	}
	c.f, c.client = f, h
	plan := c.begin(ctx, key)
	if plan == nil {
		return c.sendAlone(ctx)
	}
	return c.sendHedged(ctx, c, plan.Delays)
}

// DoDetached makes a call of f under a key. It returns with the first success or the end of ctx. It gives later successes to discard; nil: it closes
// them if they are io.Closers.
func DoDetached[T any](ctx context.Context, h *Client, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if reason := h.IneligibleReason(race.OverridesFrom(ctx), h.CountCall()); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c := &detachedCall[T]{discard: discard}
	c.f, c.client, c.detached = f, h, true
	var delays []time.Duration // none: the caller may leave the call all the same
	if plan := c.begin(ctx, key); plan != nil {
		delays = plan.Delays
	}
	c.race.Style.Detach, c.race.Style.Leave = true, c.leave
	return c.sendHedged(ctx, c, delays)
}

// CallOnce calls f for a call that has no other attempt.
func CallOnce[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	once, _ := race.Once(ctx)
	return f(once)
}

// sendOnce makes a call that is not hedged, for the given reason.
func sendOnce[T any](ctx context.Context, h *Client, key string, reason observe.Reason, f func(context.Context) (T, error)) (T, error) {
	p := h.Policy.BeginUnhedged(ctx, policy.Name{Host: key}, reason)
	v, err := CallOnce(ctx, f)
	p.Done(err == nil)
	return v, err
}

// call is one call in flight: the Op and the Gate of its race.
//
// The goroutine of Do writes its fields before the race begins, and attempts read them. Each
// hedge writes its own element of contexts before it can win; Do reads that of the winner.
type call[T any] struct {
	policy.Call
	race     race.Race[T]
	client   *Client
	key      *policy.Key // kept for the next call, which is often one of the same key
	f        func(context.Context) (T, error)
	contexts [1 + race.MaxHedges]*attemptctx.Context
	detached bool // the call is not used again: attempts may outlive it

	primaryAnswered bool         // the first call of f returned without an error; written in the goroutine of Do unless the call is detached
	hedgeAnswered   atomic.Int64 // when a hedge first did, in nanoseconds since the beginning; 0: none did
}

// operation is a call, or what is made of one.
type operation[T any] interface {
	race.Op[T]
	race.Gate
}

// begin begins the call, and returns its plan; nil: no hedge can become due.
func (c *call[T]) begin(ctx context.Context, key string) *policy.Schedule {
	h := c.client
	if name := (policy.Name{Host: key}); !c.key.Is(name) {
		c.key = h.Policy.Key(name)
	}
	plan := c.Begin(ctx, c.key, race.OverridesFrom(ctx).Delay)
	if plan == nil {
		h.Counters.WarmupRequests.Add(1)
	}
	return plan
}

// sendAlone makes a call for which no hedge can become due, and learns from it.
func (c *call[T]) sendAlone(ctx context.Context) (T, error) {
	c.Started(ctx, 0)
	v, err := CallOnce(ctx, c.f)
	c.Finished(ctx, 0, race.OutcomeOf(err))
	c.End(err == nil, false, 0)
	c.free()
	return v, err
}

// sendHedged makes the call by op, and hedges at the delays.
func (c *call[T]) sendHedged(ctx context.Context, op operation[T], delays []time.Duration) (T, error) {
	c.contexts[0] = attemptctx.NewPrimary()
	style := &c.race.Style
	style.Usual, style.Watch, style.Primary, style.Fresh = c.Usual(), c.Watch(), c.contexts[0].Attempt(), c.InBubble()
	out := c.race.Run(ctx, op, op, delays)
	gainer := out.Winner
	if gainer > 0 && c.isHeldBack() {
		gainer = -1
		c.client.Counters.HeldBack.Add(1)
		c.client.Log.HeldBack(c.key.Name.Host)
	}
	c.End(out.Winner >= 0, gainer > 0, 0)
	c.client.CountOutcome(&c.Call, gainer)
	switch {
	case out.Winner >= 0:
		c.contexts[out.Winner].Win()
	case out.Attempt != nil:
		out.Attempt.Release()
	}
	if !c.detached && c.race.Reset() {
		c.free()
	}
	return out.Value, out.Err
}

// isHeldBack reports whether the first call of f held back the result of the hedge that has won: it took twice as long as the hedge's
// answer, or returned a success of its own after a quarter more. Ask once the race is over.
func (c *call[T]) isHeldBack() bool {
	answered, took := time.Duration(c.hedgeAnswered.Load()), c.Elapsed()
	return !c.detached && answered > 0 && (took >= 2*answered || c.primaryAnswered && took >= answered+answered/4)
}

// free gives the call back, to be used again.
func (c *call[T]) free() {
	c.Forget()
	c.primaryAnswered = false
	c.hedgeAnswered.Store(0)
	c.f, c.contexts = nil, [1 + race.MaxHedges]*attemptctx.Context{}
	c.client.calls.Put(c)
}

func (c *call[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		v, err := c.f(c.contexts[0])
		if !c.detached {
			c.primaryAnswered = err == nil
		}
		return v, err
	}
	c.contexts[n] = attemptctx.New(a)
	v, err := c.f(c.contexts[n])
	if err == nil {
		c.hedgeAnswered.CompareAndSwap(0, int64(c.Elapsed()))
	}
	return v, err
}

func (c *call[T]) Discard(v T, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.client.Counters.HedgePanics.Add(1)
		return
	}
	closer, ok := any(v).(io.Closer)
	if !ok || err != nil || isNil(v) || c.race.Won(v) {
		return // there is nothing to close, or the caller has it
	}
	defer c.countPanic()
	_ = closer.Close() // nobody is left to tell
}

// isNil reports whether v is a nil of any type, which has nothing to close.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}

// countPanic is deferred where a panic would end the process, because the goroutine is ours.
func (c *call[T]) countPanic() {
	if recover() != nil {
		c.client.Counters.HedgePanics.Add(1)
	}
}

// detachedCall is a call whose losers are left behind.
type detachedCall[T any] struct {
	call[T]
	discard func(T)
	ended   atomic.Int32 // attempts
}

// Admit takes a place among those that may be left behind. Of a call with n hedges, n
// attempts can be, and each but the first to end gives a place back. To leave is an end as well.
func (c *detachedCall[T]) Admit(index int) bool {
	places, reason, admitted := &c.client.detached, policy.None, false
	if places.Add(1) > MaxDetached {
		reason = observe.DeniedInFlight
	}
	defer func() {
		if !admitted {
			places.Add(-1)
		}
	}()
	admitted = c.AdmitUnless(index, reason)
	return admitted
}

// Ended is called for every hedge that was admitted, also if its Attempt was not.
func (c *detachedCall[T]) Ended(n int) {
	c.call.Ended(n)
	c.end()
}

func (c *detachedCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		defer c.end()
	}
	return c.call.Attempt(a, n)
}

// leave takes the place of the attempt that nobody waits for any more, unless one that has
// ended has left it its own.
func (c *detachedCall[T]) leave() bool {
	if places := &c.client.detached; places.Add(1) > MaxDetached && c.ended.Load() == 0 {
		places.Add(-1)
		return false
	}
	c.end()
	return true
}

// end says that an attempt has ended, or that the caller has left.
func (c *detachedCall[T]) end() {
	if c.ended.Add(1) > 1 {
		c.client.detached.Add(-1)
	}
}

func (c *detachedCall[T]) Discard(v T, err error) {
	if err != nil || c.discard == nil {
		c.call.Discard(v, err)
		return
	}
	defer c.countPanic()
	c.discard(v)
}
