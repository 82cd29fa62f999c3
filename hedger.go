package hedge

import (
	"context"
	"io"
	"sync"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

// A Hedger keeps what is learned of the calls of [Do], and their budgets. It is safe
// for concurrent use. The zero Hedger is not usable; NewHedger makes one.
type Hedger struct {
	handle
	calls sync.Pool // of *doCall[T], for any T
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
// time. It returns the first result without an error. If every call fails, it
// returns what the first one returned. With a nil h, it calls f once.
//
// f must be safe to run twice at once. It must return soon after its context is done:
// Do returns only when the first call has returned, even if another one answered.
// That context ends when Do returns. A value that comes too late is closed if it is
// an [io.Closer].
func Do[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error)) (T, error) {
	if h == nil {
		return f(engine.ForAttempt(ctx))
	}
	h.mustBeMade()
	h.stats.TotalRequests.Add(1)
	o := engine.OverridesFrom(ctx)
	if off := h.off.Load(); off || o.Never || o.Hedge > 0 {
		reason := engine.Disabled
		if !off {
			h.stats.NotHedgeable.Add(1)
			if !o.Never {
				reason = engine.Nested
			}
		}
		p := h.engine.BeginUnhedged(ctx, engine.Name{Host: key}, reason)
		v, err := f(engine.ForAttempt(ctx))
		p.Done(err == nil)
		return v, err
	}
	c, ok := h.calls.Get().(*doCall[T])
	if !ok {
		c = new(doCall[T])
	}
	c.f, c.hedger = f, h
	plan := c.Begin(ctx, h.engine.Key(engine.Name{Host: key}), o.Delay)
	if plan == nil {
		h.stats.WarmupRequests.Add(1)
		c.Started(ctx, 0)
		v, err := f(engine.ForAttempt(ctx))
		c.Finished(ctx, 0, race.OutcomeOf(err))
		c.End(err == nil, false, 0)
		return v, err
	}
	out := c.race.Run(ctx, c, c, plan.Delays, race.Style{Watch: c.Watch()})
	c.End(out.Winner >= 0, out.Winner > 0, 0)
	h.tally(&c.Call, out.Winner)
	out.Attempt.Release()
	if c.race.Reset() {
		c.f, c.Call = nil, engine.Call{}
		h.calls.Put(c)
	}
	return out.Value, out.Err
}

type doCall[T any] struct {
	engine.Call
	race   race.Race[T]
	hedger *Hedger
	f      func(context.Context) (T, error)
}

func (c *doCall[T]) Attempt(a *race.Attempt, n int) (T, error) {
	if n > 0 {
		return c.f(engine.ForHedge(a, n))
	}
	return c.f(engine.ForAttempt(a))
}

func (c *doCall[T]) Discard(v T, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.hedger.stats.HedgePanics.Add(1)
		return
	}
	if closer, ok := any(v).(io.Closer); ok && err == nil {
		defer func() {
			if recover() != nil { // in a goroutine of ours, it would end the process
				c.hedger.stats.HedgePanics.Add(1)
			}
		}()
		_ = closer.Close() // nobody is left to tell
	}
}
