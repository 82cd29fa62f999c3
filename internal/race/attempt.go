package race

import (
	"context"
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

// An Attempt is the context one attempt runs under: the caller's, which the
// race can cancel on its own. It costs one allocation until somebody asks for
// Done: only then does it become a cancellable context of package context, so
// that contexts derived from it attach to it without a goroutine.
type Attempt struct {
	context.Context // the caller's

	n        uint8 // 0 is the primary
	detached bool  // may outlive the caller's context, see detach

	mu   sync.Mutex // guards the making of in and what follows
	in   atomic.Pointer[inner]
	stop func() bool // ends a detached attempt's ties to the caller's context
}

type inner struct {
	context.Context
	cancel context.CancelCauseFunc
}

// Done makes the attempt cancellable when first called.
func (a *Attempt) Done() <-chan struct{} { return a.inner().Done() }

// Err follows the caller's context until the attempt has one of its own.
func (a *Attempt) Err() error {
	if in := a.in.Load(); in != nil {
		return in.Err()
	}
	return a.Context.Err()
}

// Value finds the attempt's own cancellation for package context, and else the caller's values.
// Package context asks for Done or Err before it asks for a cancellation.
func (a *Attempt) Value(key any) any {
	if key == (numberKey{}) {
		return a.n
	}
	if in := a.in.Load(); in != nil {
		return in.Value(key)
	}
	return a.Context.Value(key)
}

// Adopt makes ctx the attempt's own context, and reports false if it has one already. ctx
// must end with the caller's, and by cancel; Release then also calls stop.
func (a *Attempt) Adopt(ctx context.Context, cancel context.CancelCauseFunc, stop func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in.Load() != nil {
		return false
	}
	a.stop = stop
	a.in.Store(&inner{ctx, cancel})
	return true
}

func (a *Attempt) inner() *inner {
	if in := a.in.Load(); in != nil {
		return in
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if in := a.in.Load(); in != nil {
		return in
	}
	in := new(inner)
	if a.detached && a.Context.Done() != nil {
		in.Context, in.cancel = context.WithCancelCause(context.WithoutCancel(a.Context))
		deadline, timed := a.Context.Deadline()
		if timed {
			var done context.CancelFunc
			parent := in.cancel
			in.Context, done = context.WithDeadline(in.Context, deadline)
			in.cancel = func(cause error) { parent(cause); done() }
		}
		caller, cancel := a.Context, in.cancel
		a.stop = context.AfterFunc(caller, func() {
			if timed && caller.Err() == context.DeadlineExceeded && !time.Now().Before(deadline) {
				return // the attempt's own deadline says so itself, and in the right words
			}
			cancel(context.Cause(caller))
		})
	} else {
		in.Context, in.cancel = context.WithCancelCause(a.Context)
	}
	a.in.Store(in)
	return in
}

type numberKey struct{}

// Number returns the number of the attempt that ctx belongs to, 0 for a primary.
// Of races within races it is the innermost. It reports false outside of attempts.
func Number(ctx context.Context) (n int, ok bool) {
	v, ok := ctx.Value(numberKey{}).(uint8)
	return int(v), ok
}

// An Origin is the context of a primary that begins before its race does, for [Number].
type Origin struct{ context.Context }

// Value says that the context is a primary's.
func (o *Origin) Value(key any) any {
	if key == (numberKey{}) {
		return uint8(0)
	}
	return o.Context.Value(key)
}

// cancel ends the attempt with the given cause.
func (a *Attempt) cancel(cause error) { a.inner().cancel(cause) }

// detach lets a detached attempt run on when the caller's context ends. Its deadline stays.
func (a *Attempt) detach() {
	a.inner() // or a context made later would be tied to the caller's again
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stop != nil {
		a.stop()
	}
}

// Holds reports whether the attempt still has ties to the caller's context,
// which only Release cuts.
func (a *Attempt) Holds() bool { return a.in.Load() != nil && a.Context.Done() != nil }

// Release ends the attempt and its ties to the caller's context. It must be
// called when what the attempt returned is no longer needed, if Holds reports
// true. Calling it again does nothing.
func (a *Attempt) Release() {
	in := a.in.Load()
	if in == nil {
		return
	}
	a.mu.Lock()
	if a.stop != nil {
		a.stop()
	}
	a.mu.Unlock()
	in.cancel(nil)
}
