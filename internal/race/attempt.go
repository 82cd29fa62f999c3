package race

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errLost is a type of its own so that traces which record the type of an error say what happened.
type errLost struct{}

func (errLost) Error() string        { return "hedge: another attempt won" }
func (errLost) Is(target error) bool { return target == context.Canceled }

// ErrLost is the cancellation cause of an attempt that lost.
// errors.Is(ErrLost, context.Canceled) holds.
var ErrLost error = errLost{}

// ErrRefused is the error of a hedge that was not sent after all, or that its server turned
// away. For a Watch, it has lost.
var ErrRefused = errors.New("hedge: the hedge was refused")

// ErrAnswer is the error of an attempt that has an answer which is no success, such as "not
// found". It ends the call if it is the primary's; for Run that is a success then. A hedge with
// ErrAnswer has failed: the primary may still have a success.
var ErrAnswer = errors.New("hedge: the answer is no success")

// OfPrimary returns what err is of a primary, which has nothing to wait for if it has an answer.
func OfPrimary(err error) error {
	if err == ErrAnswer {
		return nil
	}
	return err
}

// An Attempt is the context one attempt runs under: the caller's, which the
// race can cancel on its own, without the caller's [Overrides] for the call. It costs one allocation until somebody asks for
// Done: only then does it become a cancellable context of package context, so
// that contexts derived from it attach to it without a goroutine.
type Attempt struct {
	context.Context // the caller's

	n        uint8  // 0 is the primary
	async    bool   // may outlive the caller's context, see ignoreCaller
	detaches bool   // may outlive its call, see [Detachment]
	call     Called // see [Style]

	mu    sync.Mutex            // guards the making of in, and guard
	in    atomic.Pointer[inner] // nil: not made yet; released: it never will be
	guard Guard                 // nil: cancelling the attempt harms nothing else
}

// NewAttempt returns attempt n of a race that is over. It is for hedges of what the race's
// winner has returned; n is at most MaxHedges.
func NewAttempt(parent context.Context, n int) *Attempt {
	return &Attempt{Context: parent, n: uint8(n), detaches: true}
}

// Lose cancels the attempt because another one has won, as soon as its guard allows. It does not
// use the caller's context any more, if it is a hedge.
func (a *Attempt) Lose() {
	a.Cancel()
	a.detach(a.values())
}

type inner struct {
	context.Context
	cancel context.CancelCauseFunc
	caller callerContext // of an attempt that may outlive its call; else it has no Context
	stop   func() bool   // of an adopted context; else nil

	ending sync.Mutex // held while the context leaves that of the caller, which uses that
}

// released stands for the context of an attempt that was released without one.
var released = new(inner)

// made returns the attempt's own context, nil if it has none.
func (a *Attempt) made() *inner {
	if in := a.in.Load(); in != released {
		return in
	}
	return nil
}

// end cancels the attempt's own context, which nothing else needs to end any more. Once it has returned, another end does not use the
// caller's context.
func (in *inner) end(cause error) {
	in.ending.Lock()
	defer in.ending.Unlock()
	if in.stop != nil {
		in.stop()
	}
	in.cancel(cause)
}

// Done makes the attempt cancellable when first called, unless it was released before.
func (a *Attempt) Done() <-chan struct{} {
	if in := a.inner(); in != nil {
		return in.Done()
	}
	return a.Context.Done()
}

// Deadline is that of the caller's context.
func (a *Attempt) Deadline() (time.Time, bool) {
	if in := a.made(); in != nil {
		return in.Deadline()
	}
	return a.Context.Deadline()
}

// Err follows the caller's context, while the attempt is tied to it.
func (a *Attempt) Err() error {
	in := a.made()
	if in == nil {
		return a.Context.Err()
	}
	if err := in.Err(); err != nil || !in.caller.canEnd {
		return err
	}
	return in.caller.endError() // which in is about to learn
}

// Value finds the attempt's own cancellation for package context, and else the caller's values.
// Package context asks for Done or Err before it asks for a cancellation.
func (a *Attempt) Value(key any) any {
	if key == (numberKey{}) {
		return a.n
	}
	in, from := a.made(), a.Context
	if a.detaches && a.n > 0 {
		in = a.inner() // which remembers what it was asked for
	}
	if in != nil {
		from = in
	}
	if key == (overridesKey{}) {
		return below(from, int(a.n), a.call)
	}
	return from.Value(key)
}

func (*Attempt) attemptContext() {}

// Own is memory for the context that an attempt adopts.
type Own struct{ inner }

// Adopt makes ctx the attempt's own context, and reports false if it has one already. ctx
// must end with the caller's, and by cancel, before which stop is called. The attempt
// refers to own from then on.
func (a *Attempt) Adopt(own *Own, ctx context.Context, cancel context.CancelCauseFunc, stop func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return false
	}
	own.inner = inner{Context: ctx, cancel: cancel, stop: stop}
	return a.in.CompareAndSwap(nil, &own.inner) // it may be released meanwhile
}

// inner returns the attempt's own context, nil if it was released without one.
func (a *Attempt) inner() *inner {
	if a.in.Load() != nil {
		return a.made()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return a.made()
	}
	in, parent := new(inner), a.Context
	if a.async || a.detaches {
		in.caller.Context, in.caller.recordsValues = parent, a.detaches && a.n > 0
		in.caller.canEnd = parent.Done() != nil && parent.Err() == nil
		parent = &in.caller
	}
	in.Context, in.cancel = context.WithCancelCause(parent)
	if !a.in.CompareAndSwap(nil, in) { // it was released meanwhile
		in.cancel(nil)
		return nil
	}
	return in
}

type numberKey struct{}

// Number returns the number of the attempt that ctx belongs to, 0 for a primary.
// Of races within races it is the innermost. It reports false outside of attempts.
func Number(ctx context.Context) (n int, ok bool) {
	v, ok := ctx.Value(numberKey{}).(uint8)
	return int(v), ok
}

// An Origin is the context of a primary that begins before its race does.
type Origin struct {
	context.Context
	Call Called // as in [Style]
}

// Value says what that of the primary's [Attempt] does.
func (o *Origin) Value(key any) any {
	switch key {
	case numberKey{}:
		return uint8(0)
	case overridesKey{}:
		return below(o.Context, 0, o.Call)
	}
	return o.Context.Value(key)
}

// SetGuard has g put off the cancellation of the attempt, in place of another guard that it may have.
func (a *Attempt) SetGuard(g Guard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.guard = g
}

// Guard returns the guard of the attempt; nil if it has none.
func (a *Attempt) Guard() Guard {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guard
}

// Cancel ends the context of an attempt that has lost, with the cause [ErrLost], as soon as its guard allows.
func (a *Attempt) Cancel() {
	in := a.inner()
	if in == nil {
		return
	}
	a.mu.Lock() // or it might get a guard, and a response, before in is cancelled
	defer a.mu.Unlock()
	if a.guard != nil {
		a.guard.Cancel(func() { in.end(ErrLost) })
	} else {
		in.end(ErrLost)
	}
}

// ignoreCaller lets an asynchronous attempt run on when the caller's context ends.
func (a *Attempt) ignoreCaller() {
	if in := a.inner(); in != nil { // made now, or one made later would end with the caller's context again
		in.caller.ignoreEnd()
	}
}

// detach ends all use of the caller's context, see [Detachment]. The attempt finds the given values from now on.
func (a *Attempt) detach(values []contextValue) {
	if in := a.inner(); in != nil && in.caller.Context != nil {
		in.ending.Lock()
		defer in.ending.Unlock()
		in.caller.detach(values)
	}
}

// values returns the values of the caller's context that the attempt has been asked for.
func (a *Attempt) values() []contextValue {
	if in := a.made(); in != nil {
		return in.caller.recorded()
	}
	return nil
}

// Keep reports whether the attempt has ties to the caller's context, which only Release cuts. If
// it has none it gets none: whoever asks for Done from now on has the caller's own.
func (a *Attempt) Keep() bool { return a.own() != nil && a.Context.Done() != nil }

// Release ends the attempt and its ties to the caller's context. It must be
// called when what the attempt returned is no longer needed, if Keep reports
// true. Calling it again does nothing.
func (a *Attempt) Release() {
	if in := a.own(); in != nil {
		in.end(nil)
	}
}

// Abandon releases an attempt that has returned nothing which is still needed, and ends its use of the caller's context.
func (a *Attempt) Abandon() {
	a.detach(nil)
	a.Release()
}

// own returns the attempt's own context. If it is nil, there will be none.
func (a *Attempt) own() *inner {
	if a.in.CompareAndSwap(nil, released) {
		return nil
	}
	return a.made()
}
