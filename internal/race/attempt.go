package race

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errLost is the type of ErrLost. Traces record the type of an error.
type errLost struct{}

func (errLost) Error() string        { return "hedge: another attempt won" }
func (errLost) Is(target error) bool { return target == context.Canceled }

// ErrLost is the cancellation cause of an attempt that lost.
// errors.Is(ErrLost, context.Canceled) holds.
var ErrLost error = errLost{}

// ErrRefused is the error of a hedge that was not sent, or that its server refused. For an [AttemptObserver], the hedge has lost.
var ErrRefused = errors.New("hedge: the hedge was refused")

// ErrAnswer is the error of an attempt with an answer that is not a success, such as "not found". From the primary it ends the call, and is a success
// for Run. From a hedge it is a failure: the primary may still succeed.
var ErrAnswer = errors.New("hedge: the answer is no success")

// PrimaryError returns nil if err is ErrAnswer, and otherwise err: an answer of the primary ends its call.
func PrimaryError(err error) error {
	if err == ErrAnswer {
		return nil
	}
	return err
}

// An Attempt is one attempt of a race and, as a [context.Context], the context of that attempt. It has the values and the deadline of the caller's
// context, without the [Overrides] that hold for the call alone, and the race can cancel it. It costs one allocation until Done is called: then it makes a context of package context, to which derived
// contexts attach without a goroutine.
type Attempt struct {
	context.Context // of the caller

	// Call is the host or the method that is called. The context of the attempt has it, so that hedging below recognises a call that is
	// hedged already. The zero value: it has not. An adapter sets that of the primary before the race.
	Call CallTarget

	n        uint8 // 0 is the primary
	async    bool  // may outlive the caller's context, see ignoreCaller
	detaches bool  // may outlive its call, see [Detachment]

	mu    sync.Mutex                   // guards guard, and the creation of in
	in    atomic.Pointer[innerContext] // nil: not created; released: never created
	guard Guard                        // nil: the attempt is cancelled at once
}

// NewAttempt returns attempt n of a race that has ended, for hedges that continue the result of its winner. n is at most MaxHedges.
func NewAttempt(parent context.Context, n int) *Attempt {
	return &Attempt{Context: parent, n: uint8(n), detaches: true}
}

// CancelAndDetach cancels the attempt because another one has won, as soon as its guard allows. A hedge does not use the context of the caller any more.
func (a *Attempt) CancelAndDetach() {
	a.Cancel()
	a.detach(a.recordedValues())
}

// innerContext is the cancellable context of an attempt.
type innerContext struct {
	context.Context
	cancel context.CancelCauseFunc
	caller callerContext // of an attempt that may outlive its call; otherwise its Context is nil
	stop   func() bool   // of an adopted context; otherwise nil

	ending sync.Mutex // held while the context is detached from that of the caller
}

// released stands for the inner context of an attempt that was released before it had one.
var released = new(innerContext)

// loadInnerContext returns the inner context; nil if it was not created.
func (a *Attempt) loadInnerContext() *innerContext {
	if in := a.in.Load(); in != released {
		return in
	}
	return nil
}

// endContext cancels the inner context. After it has returned, another end does not use the context of the caller.
func (in *innerContext) endContext(cause error) {
	in.ending.Lock()
	defer in.ending.Unlock()
	if in.stop != nil {
		in.stop()
	}
	in.cancel(cause)
}

// Done returns the channel that is closed when the attempt is cancelled. The first call makes the attempt cancellable, unless it was released before;
// then the channel is that of the caller's context.
func (a *Attempt) Done() <-chan struct{} {
	if in := a.ensureInnerContext(); in != nil {
		return in.Done()
	}
	return a.Context.Done()
}

// Deadline returns the deadline of the caller's context.
func (a *Attempt) Deadline() (time.Time, bool) {
	if in := a.loadInnerContext(); in != nil {
		return in.Deadline()
	}
	return a.Context.Deadline()
}

// Err returns the error of the attempt: that of the caller's context, until the attempt is cancelled or detached.
func (a *Attempt) Err() error {
	in := a.loadInnerContext()
	if in == nil {
		return a.Context.Err()
	}
	if err := in.Err(); err != nil || !in.caller.canEnd {
		return err
	}
	return in.caller.endError() // in gets the same error a moment later
}

// Value returns a value of the caller's context, the number of the attempt, or the inner context, for which package context asks after Done or Err.
func (a *Attempt) Value(key any) any {
	if key == (numberKey{}) {
		return a.n
	}
	in, from := a.loadInnerContext(), a.Context
	if a.detaches && a.n > 0 {
		in = a.ensureInnerContext() // records the values that are asked for
	}
	if in != nil {
		from = in
	}
	if key == (overridesKey{}) {
		return attemptOverrides(from, int(a.n), a.Call)
	}
	return from.Value(key)
}

func (*Attempt) attemptContext() {}

// AdoptedContext is the memory of a context that an attempt adopts.
type AdoptedContext struct{ innerContext }

// AdoptContext makes ctx the inner context of the attempt. It reports false if the attempt has one. ctx must end with the context of the caller, and by
// cancel, before which stop is called. The attempt refers to own from then on.
func (a *Attempt) AdoptContext(own *AdoptedContext, ctx context.Context, cancel context.CancelCauseFunc, stop func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return false
	}
	own.innerContext = innerContext{Context: ctx, cancel: cancel, stop: stop}
	return a.in.CompareAndSwap(nil, &own.innerContext) // false if the attempt was released at the same time
}

// ensureInnerContext returns the cancellable context of the attempt, and creates it in the first call; nil if the attempt was released before.
func (a *Attempt) ensureInnerContext() *innerContext {
	if a.in.Load() != nil {
		return a.loadInnerContext()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return a.loadInnerContext()
	}
	in, parent := new(innerContext), a.Context
	if a.async || a.detaches {
		in.caller.Context, in.caller.recordsValues = parent, a.detaches && a.n > 0
		in.caller.canEnd = parent.Done() != nil && parent.Err() == nil
		parent = &in.caller
	}
	in.Context, in.cancel = context.WithCancelCause(parent)
	if !a.in.CompareAndSwap(nil, in) { // the attempt was released at the same time
		in.cancel(nil)
		return nil
	}
	return in
}

type numberKey struct{}

// AttemptNumber returns the number of the attempt to which ctx belongs; 0 is a primary. Of nested races, the innermost counts. ok is false outside of attempts.
func AttemptNumber(ctx context.Context) (n int, ok bool) {
	v, ok := ctx.Value(numberKey{}).(uint8)
	return int(v), ok
}

// An PrimaryContext is the context of a primary that begins before its race does.
type PrimaryContext struct {
	context.Context
	Call CallTarget // as in [Attempt]
}

// Value returns the values that an [Attempt] of the primary has.
func (o *PrimaryContext) Value(key any) any {
	switch key {
	case numberKey{}:
		return uint8(0)
	case overridesKey{}:
		return attemptOverrides(o.Context, 0, o.Call)
	}
	return o.Context.Value(key)
}

// SetGuard sets the guard of the attempt, which may put off its cancellation.
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
	in := a.ensureInnerContext()
	if in == nil {
		return
	}
	a.mu.Lock() // SetGuard waits until in is cancelled
	defer a.mu.Unlock()
	if a.guard != nil {
		a.guard.Cancel(func() { in.endContext(ErrLost) })
	} else {
		in.endContext(ErrLost)
	}
}

// ignoreCaller lets an asynchronous attempt run on when the caller's context ends.
func (a *Attempt) ignoreCaller() {
	if in := a.ensureInnerContext(); in != nil { // created now: an inner context that is created later would end with the caller's context
		in.caller.ignoreEnd()
	}
}

// detach ends all use of the caller's context, see [Detachment]. From now on, Value returns the given values.
func (a *Attempt) detach(values []contextValue) {
	if in := a.ensureInnerContext(); in != nil && in.caller.Context != nil {
		in.ending.Lock()
		defer in.ending.Unlock()
		in.caller.detach(values)
	}
}

// recordedValues returns the values of the caller's context that were looked up through the attempt.
func (a *Attempt) recordedValues() []contextValue {
	if in := a.loadInnerContext(); in != nil {
		return in.caller.recordedValues()
	}
	return nil
}

// NeedsRelease reports whether Release must be called to detach the attempt from the context of the caller. If not, the attempt stays without an inner
// context: Done returns the channel of the caller's context.
func (a *Attempt) NeedsRelease() bool { return a.sealInnerContext() != nil && a.Context.Done() != nil }

// Release cancels the attempt and detaches it from the context of the caller. If NeedsRelease reports true, it must be called when the result of the attempt
// is no longer needed. Further calls have no effect.
func (a *Attempt) Release() {
	if in := a.sealInnerContext(); in != nil {
		in.endContext(nil)
	}
}

// Abandon releases an attempt whose result is not needed, and ends its use of the caller's context.
func (a *Attempt) Abandon() {
	a.detach(nil)
	a.Release()
}

// sealInnerContext prevents that an inner context is created later, and returns the existing one; nil: there is none.
func (a *Attempt) sealInnerContext() *innerContext {
	if a.in.CompareAndSwap(nil, released) {
		return nil
	}
	return a.loadInnerContext()
}
