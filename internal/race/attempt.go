package race

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errLost is the type of ErrLost. It is a named type because traces record the type name of an error.
type errLost struct{}

// Error returns the text of ErrLost.
func (errLost) Error() string { return "hedge: another attempt won" }

// Is makes errors.Is report that ErrLost is context.Canceled, as for other cancelled contexts.
func (errLost) Is(target error) bool { return target == context.Canceled }

// ErrLost is the cancellation cause of an attempt that lost its race. errors.Is(ErrLost, context.Canceled) is true.
var ErrLost error = errLost{}

// ErrRefused is the error of a hedge that could not be sent or that the server refused. Such an attempt has the outcome [Lost],
// not [Failed].
var ErrRefused = errors.New("hedge: the hedge was refused")

// ErrAnswer is the error that Op.Attempt returns for a response that is not a success, such as "not found". If the primary
// returns it, the response ends the call, and Run treats it as success. If a hedge returns it, the hedge has failed, because
// the primary may still succeed.
var ErrAnswer = errors.New("hedge: the answer is no success")

// PrimaryError converts err, the error of a primary, to the error that the caller gets. It returns nil for [ErrAnswer],
// because the response of a primary always ends the call. It returns any other error unchanged.
func PrimaryError(err error) error {
	if err == ErrAnswer {
		return nil
	}
	return err
}

// An Attempt is one attempt of a race, and also the [context.Context] of that attempt. The context has the values and the
// deadline of the caller's context, except for the [Overrides] that apply to one call only. The race can cancel it.
//
// The first call of Done creates a cancellable context, from which further contexts can be derived without a goroutine. An
// attempt whose Done is never called costs one allocation.
type Attempt struct {
	context.Context // the caller's context

	// Call is the target of the call. A nested call finds it in its context, and is not hedged if it has the same target. The
	// zero value disables this check. The adapter may only set Call in the primary, before the race starts.
	Call CallTarget

	n        uint8 // number of the attempt; 0: the primary
	async    bool  // the attempt may continue after the caller's context has ended, see ignoreCaller
	detaches bool  // the attempt may continue after its call has ended, see [DetachMode]

	mu            sync.Mutex                    // guards guard and the creation of cancelContext
	cancelContext atomic.Pointer[cancelContext] // cancellable context; nil: not created yet; released: it must not be created any more
	guard         Guard                         // may delay cancellation; nil: cancellation is not delayed
}

// NewAttempt returns an attempt that does not belong to a race, with the number n, at most MaxHedges. It is for a hedge that
// resumes the response of a call that has ended. The argument parent is the caller's context.
func NewAttempt(parent context.Context, n int) *Attempt {
	return &Attempt{Context: parent, n: uint8(n), detaches: true}
}

// IsHedge reports whether the attempt is a hedge.
func (a *Attempt) IsHedge() bool { return a.n > 0 }

// CancelAndDetach cancels an attempt that has lost, as soon as its [Guard] allows. If the attempt may continue after
// its call has returned, CancelAndDetach also detaches it from the caller's context.
func (a *Attempt) CancelAndDetach() {
	a.Cancel()
	a.detach(a.recordedValues())
}

// A cancelContext is the cancellable context of an attempt. It is derived from the caller's context, or was passed to
// AdoptContext.
type cancelContext struct {
	context.Context
	cancel context.CancelCauseFunc // cancels Context with a cause
	caller callerContext           // parent of Context if the attempt may continue after its call; otherwise unused
	stop   func() bool             // argument of AdoptContext; nil if the context was not adopted

	ending sync.Mutex // held while the context is cancelled or detached from the caller's context
}

// released is the value of Attempt.cancelContext after an attempt without cancellable context was released.
var released = new(cancelContext)

// loadCancelContext returns the cancellable context of the attempt, or nil if it does not exist.
func (a *Attempt) loadCancelContext() *cancelContext {
	if in := a.cancelContext.Load(); in != released {
		return in
	}
	return nil
}

// endContext cancels the context with the given cause, and detaches it from the caller's context.
func (in *cancelContext) endContext(cause error) {
	in.ending.Lock()
	defer in.ending.Unlock()
	if in.stop != nil {
		in.stop()
	}
	in.cancel(cause)
}

// Done returns a channel that is closed when the attempt is cancelled. The first call creates the cancellable context. If
// the attempt was released before, Done returns the channel of the caller's context.
func (a *Attempt) Done() <-chan struct{} {
	if in := a.ensureCancelContext(); in != nil {
		return in.Done()
	}
	return a.Context.Done()
}

// Deadline returns the deadline of the caller's context. It returns false if there is none.
func (a *Attempt) Deadline() (time.Time, bool) {
	if in := a.loadCancelContext(); in != nil {
		return in.Deadline()
	}
	return a.Context.Deadline()
}

// Err returns nil until the attempt is cancelled or the caller's context ends. Then it returns the reason, context.Canceled or
// context.DeadlineExceeded.
func (a *Attempt) Err() error {
	in := a.loadCancelContext()
	if in == nil {
		return a.Context.Err()
	}
	if err := in.Err(); err != nil || !in.caller.canEnd {
		return err
	}
	return in.caller.endError() // the inner context gets the same error a moment later
}

// Value returns the value of the caller's context for key. It also returns values of the attempt itself: its number, its
// context, and the Overrides that apply to it. Package context calls Value to find the cancellable context.
func (a *Attempt) Value(key any) any {
	switch key {
	case numberKey{}:
		return a.n
	case AttemptContextKey{}:
		return a
	}
	in, from := a.loadCancelContext(), a.Context
	if a.detaches && a.n > 0 {
		in = a.ensureCancelContext() // records the values that are looked up
	}
	if in != nil {
		from = in
	}
	if key == (overridesKey{}) {
		return attemptOverrides(from, int(a.n), a.Call)
	}
	return from.Value(key)
}

// attemptContext implements the interface attemptContext. It marks an Attempt as a context that already has the Overrides of
// an attempt.
func (*Attempt) attemptContext() {}

// An AdoptedContext is memory in which [Attempt.AdoptContext] keeps its state. The caller allocates it, usually as part of a
// larger struct.
type AdoptedContext struct{ cancelContext }

// AdoptContext makes ctx the cancellable context of the attempt, so that the attempt need not create its own. It returns
// false, and changes nothing, if the attempt already has a cancellable context or was released.
//
// The context ctx must end when the caller's context ends, and when cancel is called. To cancel the attempt, the race calls
// stop and then cancel. The argument own is memory for the state. It must not be used for another attempt.
func (a *Attempt) AdoptContext(own *AdoptedContext, ctx context.Context, cancel context.CancelCauseFunc, stop func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancelContext.Load() != nil {
		return false
	}
	own.cancelContext = cancelContext{Context: ctx, cancel: cancel, stop: stop}
	return a.cancelContext.CompareAndSwap(nil, &own.cancelContext) // false if the attempt was released at the same time
}

// ensureCancelContext returns the cancellable context of the attempt, and creates it at the first call. It returns nil if
// the attempt was released before a context was created.
func (a *Attempt) ensureCancelContext() *cancelContext {
	if a.cancelContext.Load() != nil {
		return a.loadCancelContext()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancelContext.Load() != nil {
		return a.loadCancelContext()
	}
	in, parent := new(cancelContext), a.Context
	if a.async || a.detaches {
		in.caller.Context, in.caller.recordsValues = parent, a.detaches && a.n > 0
		in.caller.canEnd = parent.Done() != nil && parent.Err() == nil
		parent = &in.caller
	}
	in.Context, in.cancel = context.WithCancelCause(parent)
	if !a.cancelContext.CompareAndSwap(nil, in) { // the attempt was released at the same time
		in.cancel(nil)
		return nil
	}
	return in
}

// A numberKey is the context key of the number of an attempt.
type numberKey struct{}

// AttemptNumber returns the number of the attempt that ctx belongs to: 0 for a primary. If races are nested, it is an attempt
// of the race that started last. ok is false if ctx does not belong to an attempt.
func AttemptNumber(ctx context.Context) (n int, ok bool) {
	v, ok := ctx.Value(numberKey{}).(uint8)
	return int(v), ok
}

// AttemptContextKey is the type of the context key with which [AttemptContext] finds the context of an attempt, from any
// context derived from it.
type AttemptContextKey struct{}

// AttemptContext returns the context of the attempt that ctx belongs to, or nil if there is none. It is the attempt for
// which AttemptNumber returns the number. Its context does not end at a deadline that only ctx has.
func AttemptContext(ctx context.Context) context.Context {
	attempt, _ := ctx.Value(AttemptContextKey{}).(context.Context)
	return attempt
}

// A PrimaryContext is the context of a primary that is sent before its race starts. It has the same values as the context of
// an [Attempt].
type PrimaryContext struct {
	context.Context
	Call CallTarget // target of the call, see [Attempt].Call
}

// Value returns the same values as the context of a primary that a race has started.
func (o *PrimaryContext) Value(key any) any {
	switch key {
	case numberKey{}:
		return uint8(0)
	case AttemptContextKey{}:
		return o
	case overridesKey{}:
		return attemptOverrides(o.Context, 0, o.Call)
	}
	return o.Context.Value(key)
}

// SetGuard sets the guard, which can delay the cancellation of the attempt. It replaces an earlier guard.
func (a *Attempt) SetGuard(g Guard) {
	a.mu.Lock()
	a.guard = g
	a.mu.Unlock()
}

// Guard returns the guard of the attempt, or nil if there is none.
func (a *Attempt) Guard() Guard {
	a.mu.Lock()
	g := a.guard
	a.mu.Unlock()
	return g
}

// Cancel cancels the attempt with the cause [ErrLost], as soon as the guard allows. It has no effect on a released attempt.
func (a *Attempt) Cancel() {
	in := a.ensureCancelContext()
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

// ignoreCaller lets a loser finish: the attempt no longer ends when the caller's context ends. It has no effect on an
// attempt that cannot continue after its call.
func (a *Attempt) ignoreCaller() {
	if in := a.ensureCancelContext(); in != nil { // created now: an inner context that is created later would end with the caller's context
		in.caller.ignoreEnd()
	}
}

// detach makes an attempt that may continue after its call stop using the caller's context. After that, its method Value
// only finds the given values. It has no effect on other attempts.
func (a *Attempt) detach(values []contextValue) {
	if in := a.ensureCancelContext(); in != nil && in.caller.Context != nil {
		in.ending.Lock()
		defer in.ending.Unlock()
		in.caller.detach(values)
	}
}

// recordedValues returns the values of the caller's context that the attempt has looked up with Value.
func (a *Attempt) recordedValues() []contextValue {
	if in := a.loadCancelContext(); in != nil {
		return in.caller.recordedValues()
	}
	return nil
}

// NeedsRelease reports whether the owner of the attempt's result must call Release. This is so if the attempt has a
// cancellable context that is attached to the caller's context. After NeedsRelease, a cancellable context can no longer be
// created.
func (a *Attempt) NeedsRelease() bool { return a.sealCancelContext() != nil && a.Context.Done() != nil }

// Release frees the resources of the attempt's context when the result of the attempt is no longer needed. It cancels the
// attempt and detaches it from the caller's context.
//
// If NeedsRelease returned true, the owner of the result must call Release. Further calls have no effect.
func (a *Attempt) Release() {
	if in := a.sealCancelContext(); in != nil {
		in.endContext(nil)
	}
}

// Abandon releases an attempt whose result is not needed. An attempt that may continue after its call also stops using the
// caller's context, and finds no values in it any more.
func (a *Attempt) Abandon() {
	a.detach(nil)
	a.Release()
}

// sealCancelContext returns the cancellable context of the attempt if it exists. Otherwise it returns nil, and the context
// can no longer be created.
func (a *Attempt) sealCancelContext() *cancelContext {
	if a.cancelContext.CompareAndSwap(nil, released) {
		return nil
	}
	return a.loadCancelContext()
}
