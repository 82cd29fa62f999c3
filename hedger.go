package hedge

import (
	"context"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/attemptctx"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A Hedger keeps what is learned of the calls of [Do] and [DoDetached], and their
// budgets. It is safe for concurrent use. The zero Hedger is not usable; NewHedger makes one.
type Hedger struct {
	handle
	calls    sync.Pool    // of *doCall[T], for any T
	detached atomic.Int64 // hedges of DoDetached in flight, or losers left behind for them
}

// NewHedger returns a Hedger. Options that concern HTTP or gRPC have no effect.
func NewHedger(opts ...Option) *Hedger {
	h := new(Hedger)
	h.mustInit("func", opts)
	return h
}

// NewHedgerWithConfig is [NewHedger] for settings that come from outside the
// program, as [NewWithConfig] is New.
func NewHedgerWithConfig(c Config, opts ...Option) (*Hedger, error) {
	h := new(Hedger)
	if err := h.init("func", c, opts); err != nil {
		return nil, err
	}
	return h, nil
}

// Do calls f, and if that takes longer than usual for key, calls it again at the same
// time. It returns the first result without an error. If every call fails, or the others take
// longer than usual once the first one has failed, it returns what the first one returned. With
// a nil h, it calls f once.
//
// f must be safe to run twice at once. It must return soon after its context is done:
// Do returns only when the first call has returned, even if another one answered. So Do
// gains nothing where f ignores its context, as some database clients do; see [DoDetached]. That is logged once for each key, and counted in
// Stats.HeldBack instead of HedgeWins.
//
// The context of the call that wins ends when ctx does, not before, so that rows or
// a body can be read after Do. Those of the others end when Do returns. A value that
// comes too late is closed if it is an [io.Closer], unless it is nil or equal (==) to the value that Do returns.
// Where each value is to be closed, return pointers: structs of the same content are equal.
func Do[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error)) (T, error) {
	if h == nil {
		return alone(ctx, f)
	}
	if reason := h.refuses(race.OverridesFrom(ctx), h.begin()); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c, ok := h.calls.Get().(*doCall[T])
	if !ok {
		c = new(doCall[T])
	}
	c.f, c.hedger = f, h
	plan := c.begin(ctx, key)
	if plan == nil {
		return c.sendAlone(ctx)
	}
	return c.sendHedged(ctx, c, plan.Delays)
}

// MaxDetached is how many attempts of a Hedger's [DoDetached] calls there can be
// beside the one of each call that its caller waits for.
const MaxDetached = 64

// DoDetached is [Do] for an f that ignores its context. Every call of f runs in a goroutine
// of its own. DoDetached returns with the first result without an error, or as soon as ctx
// is done: with the error of the first call of f if that has failed already, and else with
// ctx.Err(). It leaves behind what still runs, to finish by itself. There are at most
// [MaxDetached] such calls of f and hedges in flight. Beyond that limit no hedge is sent, with
// the reason [DeniedInFlight], and a caller that gives up still waits for the first call of f. So
// does the caller of a call that is not to be hedged: h is nil or disabled, or ctx is that of a
// hedge or of [WithoutHedging]. Then f runs in the caller's goroutine.
//
// What comes too late is given to discard, if it came without an error, also if it is the very
// value that DoDetached returns. A nil discard closes it as [Do] does. discard is called in other goroutines, also after
// DoDetached has returned. Panics in it, and in what is left behind, are counted in
// Stats.HedgePanics. A panic in the first call of f is raised by DoDetached, unless another
// call answers, or it has returned.
//
// Each call that is left behind holds what f holds, such as a connection of a
// pool: make pools larger by that.
func DoDetached[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if h == nil {
		return alone(ctx, f)
	}
	if reason := h.refuses(race.OverridesFrom(ctx), h.begin()); reason != policy.None {
		return sendOnce(ctx, h, key, reason, f)
	}
	c := &detachedCall[T]{discard: discard}
	c.f, c.hedger, c.detached = f, h, true
	var delays []time.Duration // none: the caller may leave the call all the same
	if plan := c.begin(ctx, key); plan != nil {
		delays = plan.Delays
	}
	c.race.Style.Detach, c.race.Style.Leave = true, c.leave
	return c.sendHedged(ctx, c, delays)
}

// alone calls f for a call that has no other attempt.
func alone[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	once, _ := race.Once(ctx)
	return f(once)
}

// sendOnce makes a call that is not hedged, for the given reason.
func sendOnce[T any](ctx context.Context, h *Hedger, key string, reason Reason, f func(context.Context) (T, error)) (T, error) {
	p := h.engine.BeginUnhedged(ctx, policy.Name{Host: key}, reason)
	v, err := alone(ctx, f)
	p.Done(err == nil)
	return v, err
}

// doCall is one call in flight: the Op and the Gate of its race.
//
// The goroutine of Do writes its fields before the race begins, and attempts read them. Each
// hedge writes its own element of contexts before it can win; Do reads that of the winner.
type doCall[T any] struct {
	policy.Call
	race     race.Race[T]
	hedger   *Hedger
	key      *policy.Key // kept for the next call, which is often one of the same key
	f        func(context.Context) (T, error)
	contexts [1 + race.MaxHedges]*attemptctx.Context
	detached bool // the call is not used again: attempts may outlive it

	primaryAnswered bool         // the first call of f returned without an error; written in the goroutine of Do unless the call is detached
	hedgeAnswered   atomic.Int64 // when a hedge first did, in nanoseconds since the beginning; 0: none did
}

// doOp is a doCall, or what is made of one.
type doOp[T any] interface {
	race.Op[T]
	race.Gate
}

// begin begins the call, and returns its plan; nil: no hedge can become due.
func (c *doCall[T]) begin(ctx context.Context, key string) *policy.Schedule {
	h := c.hedger
	if name := (policy.Name{Host: key}); !c.key.Is(name) {
		c.key = h.engine.Key(name)
	}
	plan := c.Begin(ctx, c.key, race.OverridesFrom(ctx).Delay)
	if plan == nil {
		h.stats.WarmupRequests.Add(1)
	}
	return plan
}

// sendAlone makes a call for which no hedge can become due, and learns from it.
func (c *doCall[T]) sendAlone(ctx context.Context) (T, error) {
	c.Started(ctx, 0)
	v, err := alone(ctx, c.f)
	c.Finished(ctx, 0, race.OutcomeOf(err))
	c.End(err == nil, false, 0)
	c.free()
	return v, err
}

// sendHedged makes the call by op, and hedges at the delays.
func (c *doCall[T]) sendHedged(ctx context.Context, op doOp[T], delays []time.Duration) (T, error) {
	c.contexts[0] = attemptctx.NewPrimary()
	style := &c.race.Style
	style.Usual, style.Watch, style.Primary, style.Fresh = c.Usual(), c.Watch(), c.contexts[0].Attempt(), c.InBubble()
	out := c.race.Run(ctx, op, op, delays)
	gainer := out.Winner
	if gainer > 0 && c.isHeldBack() {
		gainer = -1
		c.hedger.stats.HeldBack.Add(1)
		c.hedger.log.HeldBack(c.key.Name.Host)
	}
	c.End(out.Winner >= 0, gainer > 0, 0)
	c.hedger.tally(&c.Call, gainer)
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
func (c *doCall[T]) isHeldBack() bool {
	answered, took := time.Duration(c.hedgeAnswered.Load()), c.Elapsed()
	return !c.detached && answered > 0 && (took >= 2*answered || c.primaryAnswered && took >= answered+answered/4)
}

// free gives the call back, to be used again.
func (c *doCall[T]) free() {
	c.Forget()
	c.primaryAnswered = false
	c.hedgeAnswered.Store(0)
	c.f, c.contexts = nil, [1 + race.MaxHedges]*attemptctx.Context{}
	c.hedger.calls.Put(c)
}

func (c *doCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
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

func (c *doCall[T]) Discard(v T, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.hedger.stats.HedgePanics.Add(1)
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
func (c *doCall[T]) countPanic() {
	if recover() != nil {
		c.hedger.stats.HedgePanics.Add(1)
	}
}

// detachedCall is a call whose losers are left behind.
type detachedCall[T any] struct {
	doCall[T]
	discard func(T)
	ended   atomic.Int32 // attempts
}

// Admit takes a place among those that may be left behind. Of a call with n hedges, n
// attempts can be, and each but the first to end gives a place back. To leave is an end as well.
func (c *detachedCall[T]) Admit(index int) bool {
	places, reason, admitted := &c.hedger.detached, policy.None, false
	if places.Add(1) > MaxDetached {
		reason = DeniedInFlight
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
	c.doCall.Ended(n)
	c.end()
}

func (c *detachedCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n == 0 {
		defer c.end()
	}
	return c.doCall.Attempt(a, n)
}

// leave takes the place of the attempt that nobody waits for any more, unless one that has
// ended has left it its own.
func (c *detachedCall[T]) leave() bool {
	if places := &c.hedger.detached; places.Add(1) > MaxDetached && c.ended.Load() == 0 {
		places.Add(-1)
		return false
	}
	c.end()
	return true
}

// end says that an attempt has ended, or that the caller has left.
func (c *detachedCall[T]) end() {
	if c.ended.Add(1) > 1 {
		c.hedger.detached.Add(-1)
	}
}

func (c *detachedCall[T]) Discard(v T, err error) {
	if err != nil || c.discard == nil {
		c.doCall.Discard(v, err)
		return
	}
	defer c.countPanic()
	c.discard(v)
}
