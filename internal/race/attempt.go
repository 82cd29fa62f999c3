package race

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errLost is the type of ErrLost. It has a name of its own because traces record the type of an error.
type errLost struct{}

func (errLost) Error() string        { return "hedge: another attempt won" }
func (errLost) Is(target error) bool { return target == context.Canceled }

// ErrLost is the cancellation cause of an attempt that lost its race.
// errors.Is(ErrLost, context.Canceled) holds.
var ErrLost error = errLost{}

// ErrRefused is the error of a hedge that was not sent, or that the server refused. Its outcome is [Lost].
var ErrRefused = errors.New("hedge: the hedge was refused")

// ErrAnswer is the error of an attempt whose answer is not a success, such as "not found". From the primary, the answer ends the call and counts as success
// for Run. From a hedge, it counts as failure, because the primary may still succeed.
var ErrAnswer = errors.New("hedge: the answer is no success")

// PrimaryError converts the error of a primary to that of its call. It returns nil for [ErrAnswer], because an answer of the primary ends
// the call, and otherwise err.
func PrimaryError(err error) error {
	if err == ErrAnswer {
		return nil
	}
	return err
}

// An Attempt is one attempt of a race. It is also the [context.Context] of the attempt: it has the values and the deadline of the caller's
// context, and the race can cancel it. The [Overrides] that apply to a single call are missing in it.
//
// The first call of Done makes a cancellable inner context, to which derived contexts attach without a goroutine. An attempt without that
// call costs one allocation.
type Attempt struct {
	context.Context // the caller's context

	// Call is the target of the call. Hedging in nested calls reads it from the context, to recognise a call that is hedged already. The
	// zero value has no effect. The adapter sets it in the primary before the race.
	Call CallTarget

	n        uint8 // 0 is the primary
	async    bool  // the attempt may outlive the caller's context, see ignoreCaller
	detaches bool  // the attempt may outlive its call, see [Detachment]

	mu    sync.Mutex                   // guards the field guard and the creation of in
	in    atomic.Pointer[innerContext] // nil: not created yet; released: never created
	guard Guard                        // may delay cancellation; nil: there is no delay
}

// NewAttempt returns attempt n outside of a race, for a hedge that resumes the response of a call that has ended. The number n is at most
// MaxHedges.
func NewAttempt(parent context.Context, n int) *Attempt {
	return &Attempt{Context: parent, n: uint8(n), detaches: true}
}

// CancelAndDetach cancels an attempt that has lost, as soon as its guard allows. An attempt that may outlive its call also stops using the
// caller's context.
func (a *Attempt) CancelAndDetach() {
	a.Cancel()
	a.detach(a.recordedValues())
}

// An innerContext is the cancellable context of an attempt.
type innerContext struct {
	context.Context
	cancel context.CancelCauseFunc
	caller callerContext // parent of the context, if the attempt may outlive its call; otherwise zero
	stop   func() bool   // argument of AdoptContext; nil for other contexts

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

// endContext cancels the inner context with the given cause, and detaches it from the caller's context.
func (in *innerContext) endContext(cause error) {
	in.ending.Lock()
	defer in.ending.Unlock()
	if in.stop != nil {
		in.stop()
	}
	in.cancel(cause)
}

// Done returns the channel that is closed when the attempt is cancelled. The first call creates the inner context. After Release without an
// earlier call, Done returns the channel of the caller's context.
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

// Err returns the error of the inner context, or that of the caller's context if there is no inner context.
func (a *Attempt) Err() error {
	in := a.loadInnerContext()
	if in == nil {
		return a.Context.Err()
	}
	if err := in.Err(); err != nil || !in.caller.canEnd {
		return err
	}
	return in.caller.endError() // the inner context gets the same error a moment later
}

// Value returns values of the caller's context, the number of the attempt, and its Overrides. After Done, package context also gets the
// inner context by it.
func (a *Attempt) Value(key any) any {
	if key == (numberKey{}) {
		return a.n
	}
	in, from := a.loadInnerContext(), a.Context
	if a.detaches && a.n > 0 {
		in = a.ensureInnerContext() // records the values that are looked up
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

// An AdoptedContext is memory that the caller of [Attempt.AdoptContext] allocates.
type AdoptedContext struct{ innerContext }

// AdoptContext makes ctx the inner context of the attempt, which keeps its state in own. It reports false if the attempt has an inner
// context or was released.
//
// The context ctx must end when the caller's context ends, and when cancel is called. To cancel the attempt, the race first calls stop and
// then cancel.
func (a *Attempt) AdoptContext(own *AdoptedContext, ctx context.Context, cancel context.CancelCauseFunc, stop func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return false
	}
	own.innerContext = innerContext{Context: ctx, cancel: cancel, stop: stop}
	return a.in.CompareAndSwap(nil, &own.innerContext) // false if the attempt was released at the same time
}

// ensureInnerContext returns the inner context, and creates it at the first call. It returns nil if the attempt was released without one.
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

// AttemptNumber returns the number of the attempt that ctx belongs to; 0 is a primary. In nested races, the innermost counts. It reports
// false if ctx belongs to no attempt.
func AttemptNumber(ctx context.Context) (n int, ok bool) {
	v, ok := ctx.Value(numberKey{}).(uint8)
	return int(v), ok
}

// A PrimaryContext is the context of a primary that starts before its race.
type PrimaryContext struct {
	context.Context
	Call CallTarget // as in [Attempt]
}

// Value returns the same values as an [Attempt] of the primary.
func (o *PrimaryContext) Value(key any) any {
	switch key {
	case numberKey{}:
		return uint8(0)
	case overridesKey{}:
		return attemptOverrides(o.Context, 0, o.Call)
	}
	return o.Context.Value(key)
}

// SetGuard sets the guard, which may delay the cancellation of the attempt.
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

// Cancel cancels an attempt that has lost, with the cause [ErrLost], as soon as its guard allows.
func (a *Attempt) Cancel() {
	in := a.ensureInnerContext()
	if in == nil {
		return
	}
	a.mu.Lock() // SetGuard waits until the inner context is cancelled
	defer a.mu.Unlock()
	if a.guard != nil {
		a.guard.Cancel(func() { in.endContext(ErrLost) })
	} else {
		in.endContext(ErrLost)
	}
}

// ignoreCaller keeps an asynchronous attempt alive when the caller's context ends.
func (a *Attempt) ignoreCaller() {
	if in := a.ensureInnerContext(); in != nil { // created now: an inner context that is created later would end with the caller's context
		in.caller.ignoreEnd()
	}
}

// detach stops the use of the caller's context, if the attempt may outlive its call. After that, Value only finds the given values.
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

// NeedsRelease reports whether the attempt has an inner context that is attached to the caller's context, so that Release must be called.
// It also prevents that an inner context is created later.
func (a *Attempt) NeedsRelease() bool { return a.sealInnerContext() != nil && a.Context.Done() != nil }

// Release cancels the attempt and detaches it from the caller's context. If NeedsRelease reports true, the owner of the result must call
// Release when it no longer needs the result. Further calls have no effect.
func (a *Attempt) Release() {
	if in := a.sealInnerContext(); in != nil {
		in.endContext(nil)
	}
}

// Abandon releases an attempt whose result is not needed. If the attempt may outlive its call, it also stops using the caller's context.
func (a *Attempt) Abandon() {
	a.detach(nil)
	a.Release()
}

// sealInnerContext returns the inner context, or nil if there is none. In the latter case no inner context can be created later.
func (a *Attempt) sealInnerContext() *innerContext {
	if a.in.CompareAndSwap(nil, released) {
		return nil
	}
	return a.loadInnerContext()
}
