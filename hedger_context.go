package hedge

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/gohedge/hedge/internal/race"
)

// doContext is the context that the function of [Do] runs under. Until the race is
// over it ends with its attempt. If the attempt wins, it ends with the caller's from then
// on: what the function returned, such as rows, may be read for as long as that lasts. A
// caller's context that lives as long as the program keeps nothing of it, see [tie].
type doContext struct {
	attempt *race.Attempt // its Context is the caller's
	primary race.Attempt  // what attempt points to if this is the primary's: one allocation less

	mu   sync.Mutex // guards the fields below
	won  bool
	core *doCore // nil: nobody has asked for Done
}

func (d *doContext) Deadline() (time.Time, bool) { return d.attempt.Deadline() }

func (d *doContext) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.core == nil {
		if d.won {
			return d.attempt.Context.Done()
		}
		d.core = newDoCore(d.attempt)
	}
	return d.core.Done()
}

func (d *doContext) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.won {
		return d.attempt.Context.Err()
	}
	return d.attempt.Err()
}

func (d *doContext) Value(key any) any {
	if n, ok := d.attempt.NumberValue(key); ok {
		return n
	}
	d.mu.Lock()
	core, won := d.core, d.won
	d.mu.Unlock()
	switch {
	case core != nil:
		return core.Value(key)
	case won:
		return d.attempt.Context.Value(key)
	}
	return d.attempt.Value(key)
}

// win lets the context live on when its attempt has won, and ends the attempt.
func (d *doContext) win() {
	d.mu.Lock()
	switch core := d.core; {
	case core == nil:
		d.won = true
	case core.stop(): // or else it has ended
		d.won = true
		core.root.attempt.Store(nil)
		core.stop = nil // it refers to the attempt
		d.tie()
	}
	d.mu.Unlock()
	d.attempt.Release()
}

// doCore is a cancellable context of package context, so that contexts derived from it
// attach to it without a goroutine. When the attempt has won, neither it nor its root refers
// to the doContext, which contexts derived from that do.
type doCore struct {
	context.Context
	cancel context.CancelCauseFunc // not called: root ends the context, in the right words
	root   *doRoot
	stop   func() bool // keeps the end of the attempt from ending it; nil when that has won
}

func newDoCore(a *race.Attempt) *doCore {
	core := &doCore{root: &doRoot{caller: a.Context}}
	core.root.attempt.Store(a)
	core.Context, core.cancel = context.WithCancelCause(core.root)
	core.stop = context.AfterFunc(a, core.root.end)
	return core
}

// doRoot is the parent of a doCore: the attempt until that has won, and the caller's context then.
type doRoot struct {
	caller  context.Context
	attempt atomic.Pointer[race.Attempt] // nil: it has won
	end     func()                       // ends the doCore with Err and the cause
}

var never = make(chan struct{})

func (r *doRoot) current() context.Context {
	if a := r.attempt.Load(); a != nil {
		return a
	}
	return r.caller
}

func (r *doRoot) Deadline() (time.Time, bool) { return r.caller.Deadline() }
func (r *doRoot) Done() <-chan struct{}       { return never } // AfterFunc is asked instead
func (r *doRoot) Err() error                  { return r.current().Err() }
func (r *doRoot) Value(key any) any           { return r.current().Value(key) }

// AfterFunc is called once, by package context for the doCore.
func (r *doRoot) AfterFunc(f func()) (stop func() bool) {
	r.end = f
	return func() bool { return false }
}

// tie ends a doCore with the caller's context, which holds the tie, and so the core, all
// contexts derived from it, and through these the doContext. When nobody has that any
// more, nothing is derived from it either, and the tie lets go of the core: all that
// somebody can still have is the channel. When nobody has that, the caller's context
// forgets the tie.
type tie struct {
	core atomic.Pointer[doCore]
	stop func() bool
}

// tie is called when d has won. Cleanups use no channel, which in a bubble of
// testing/synctest they must not, and hold nothing.
func (d *doContext) tie() {
	caller := d.attempt.Context
	if caller.Done() == nil {
		return
	}
	// Whoever waits for a channel need not hold anything else, so that the weak pointer has
	// to be to the channel itself. A channel is a pointer, which only unsafe can say.
	done := d.core.Done()
	target := *(**byte)(unsafe.Pointer(&done))
	channel := weak.Make(target)
	t := new(tie)
	t.core.Store(d.core)
	t.stop = context.AfterFunc(caller, func() {
		if core := t.core.Load(); core != nil {
			core.root.end()
		} else if target := channel.Value(); target != nil {
			close(*(*chan struct{})(unsafe.Pointer(&target)))
		}
	})
	runtime.AddCleanup(d, func(t weak.Pointer[tie]) {
		if t := t.Value(); t != nil {
			t.core.Store(nil)
		}
	}, weak.Make(t))
	runtime.AddCleanup(target, func(t weak.Pointer[tie]) {
		if t := t.Value(); t != nil {
			t.stop()
		}
	}, weak.Make(t))
}
