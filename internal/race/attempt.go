package race

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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

// An Attempt is the context one attempt runs under: the caller's, which the
// race can cancel on its own. It costs one allocation until somebody asks for
// Done: only then does it become a cancellable context of package context, so
// that contexts derived from it attach to it without a goroutine.
type Attempt struct {
	context.Context // the caller's

	n        uint8 // 0 is the primary
	detached bool  // may outlive the caller's context, see detach

	mu    sync.Mutex // guards the making of in, and guard
	in    atomic.Pointer[inner]
	guard *Guard // nil: cancelling harms nobody else
}

// NewAttempt returns attempt n of a race that is over. It is for hedges of what the race's
// winner has returned; n is at most MaxHedges.
func NewAttempt(parent context.Context, n int) *Attempt {
	return &Attempt{Context: parent, n: uint8(n)}
}

// Lose cancels the attempt because another one has won, as soon as its guard allows.
func (a *Attempt) Lose() { a.cancel(ErrLost) }

type inner struct {
	context.Context
	cancel context.CancelCauseFunc
	tie    *tie        // of a detached attempt; else nil
	stop   func() bool // of an adopted context; else nil
}

// end cancels the attempt's own context, which nothing else needs to end any more.
func (in *inner) end(cause error) {
	if in.stop != nil {
		in.stop()
	}
	in.cancel(cause)
}

// tie is the caller's context for what can be cut loose from it. What is derived from it
// ends with the caller's context, by the same error and cause, until cut is called.
type tie struct {
	context.Context
	cut func() bool
}

// open is never closed: package context uses AfterFunc instead, where there is one.
var open = make(chan struct{})

func (t *tie) Done() <-chan struct{} { return open }

// AfterFunc is called once, by the context that is derived from the tie.
func (t *tie) AfterFunc(f func()) func() bool {
	t.cut = context.AfterFunc(t.Context, f)
	return t.cut
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
	a.in.Store(&own.inner)
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
	in, parent := new(inner), a.Context
	if a.detached && parent.Done() != nil && parent.Err() == nil {
		in.tie = &tie{Context: parent}
		parent = in.tie
	}
	in.Context, in.cancel = context.WithCancelCause(parent)
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

// Guard has the race heed g when it cancels the attempt.
func (a *Attempt) Guard(g *Guard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.guard = g
}

// cancel ends the attempt with the given cause, as soon as its guard allows.
func (a *Attempt) cancel(cause error) {
	in := a.inner()
	a.mu.Lock() // or it might get a guard, and an answer, before in is cancelled
	defer a.mu.Unlock()
	if a.guard != nil {
		a.guard.cancel(in, cause)
	} else {
		in.end(cause)
	}
}

// waits reports whether the attempt has nothing yet that lingering could save.
func (a *Attempt) waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guard != nil && a.guard.waiting.Load()
}

// prompt reports whether the attempt would be cancelled at once: its guard allows it.
func (a *Attempt) prompt() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guard == nil || a.guard.prompt()
}

// detach lets a detached attempt run on when the caller's context ends.
func (a *Attempt) detach() {
	if in := a.inner(); in.tie != nil { // made now, or one made later would be tied to the caller's context again
		in.tie.cut()
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
	in.end(nil)
}
