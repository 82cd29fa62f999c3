// Package attemptctx is the context that the function of hedge.Do runs under. It ends with the
// caller's context, or when its attempt loses: what a winner returned, such as rows, may be
// read for as long as the caller's context lasts.
//
// Package context has nothing like it. A context that is derived there and never cancelled hangs
// on its parent for as long as that lives, and a worker that makes all its calls with
// one context would keep some 570 bytes of each call for ever. BenchmarkKept shows what is
// kept with and without the tie that is let go of here, which is what weak and unsafe are for.
package attemptctx

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

// A Context is that of one attempt. It is safe for concurrent use. A caller's context that lives
// as long as the program keeps nothing of it, see [tie].
type Context struct {
	attempt *race.Attempt // set before the attempt begins; its Context is the caller's
	primary race.Attempt  // what attempt points to if this is the primary's: one allocation less

	mu   sync.Mutex // guards the fields below
	won  bool
	tie  *tie            // nil: nobody has asked for Done
	done <-chan struct{} // if there is a tie
}

// New returns the context of a hedge.
func New(a *race.Attempt) *Context { return &Context{attempt: a} }

// NewPrimary returns the context of a primary, whose attempt is in it.
func NewPrimary() *Context {
	d := new(Context)
	d.attempt = &d.primary
	return d
}

// Attempt returns the attempt.
func (d *Context) Attempt() *race.Attempt { return d.attempt }

// Deadline returns that of the caller's context.
func (d *Context) Deadline() (time.Time, bool) { return d.attempt.Deadline() }

// Value finds what the caller's context holds, and the attempt's own.
func (d *Context) Value(key any) any { return d.attempt.Value(key) }

// Done returns a channel that is closed when the context ends.
func (d *Context) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	caller := d.attempt.Context
	switch {
	case d.tie != nil:
		return d.done
	case caller.Done() == nil: // so that nothing hangs on it
		return d.attempt.Done()
	case d.won:
		return caller.Done()
	}
	root := &anchor{Context: caller}
	own, cancel := context.WithCancelCause(root)
	t := newTie(root)
	if !d.attempt.AdoptContext(&root.own, own, cancel, t.stop) {
		t.stop()
		return d.attempt.Done() // it has lost
	}
	if caller.Err() != nil {
		root.end() // now, which the tie does soon
	}
	root.done = own.Done()
	d.tie, d.done = t, root.done
	return d.done
}

// Err returns why the context has ended; nil: it has not. When the caller's context has ended, Err
// says so at once, maybe before the channel of Done is closed.
func (d *Context) Err() error {
	if err := d.attempt.Err(); err != nil {
		return err
	}
	return d.attempt.Context.Err()
}

// Win says that the attempt has won: from now on only the caller's context ends it.
func (d *Context) Win() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.won = true
	if d.tie != nil {
		d.tie.outlive(d)
	}
}

// An anchor is the caller's context as the parent of the attempt's own context, which package
// context makes. So contexts that are derived from a Context attach to the attempt's own without a
// goroutine, and end by the error and cause of the caller's. The anchor does not refer to the
// Context. Contexts that are derived from the Context do.
//
// The goroutine that first calls Done writes the fields, before anybody else has them.
type anchor struct {
	context.Context
	end  func()              // ends the attempt's own context, and holds it
	done <-chan struct{}     // of that context
	own  race.AdoptedContext // for the attempt, which holds it
}

var never = make(chan struct{})

// Done has to be there, but is not waited for: package context calls AfterFunc.
func (r *anchor) Done() <-chan struct{} { return never }

// AfterFunc is called once, for the attempt's own context.
func (r *anchor) AfterFunc(f func()) (stop func() bool) {
	r.end = f
	return func() bool { return false }
}

// A tie ends the attempt's own context when the caller's ends. The caller's context holds the
// tie, the tie holds the root, and the root holds the attempt's own context and all that is
// derived from it. What is derived holds the Context.
//
// So once nobody can reach the Context, nothing that is derived from it needs to end, and the
// tie lets go of the root. What somebody may still wait for is the channel of Done alone. Once
// nobody can reach the channel either, the caller's context forgets the tie.
//
// The cleanup of the Context writes channel before it writes root; end reads them in the other order.
type tie struct {
	root    atomic.Pointer[anchor] // nil: nobody has the context
	channel weak.Pointer[byte]     // set before root becomes nil
	stop    func() bool            // makes the caller's context forget the tie
}

func newTie(root *anchor) *tie {
	t := new(tie)
	t.root.Store(root)
	t.stop = context.AfterFunc(root.Context, t.end)
	return t
}

// end is called when the caller's context has ended.
func (t *tie) end() {
	if root := t.root.Load(); root != nil {
		root.end()
	} else if target := t.channel.Value(); target != nil {
		close(*(*chan struct{})(unsafe.Pointer(&target)))
	}
}

// outlive is called when d has won. From now on the tie lets go as its type says. A cleanup
// must not use a channel of a bubble of testing/synctest, so these use none, and they keep nothing
// alive.
func (t *tie) outlive(d *Context) {
	runtime.AddCleanup(d, func(self weak.Pointer[tie]) {
		if t := self.Value(); t != nil {
			t.keepChannel(self)
		}
	}, weak.Make(t))
}

// keepChannel lets go of the root, and of the caller's context when nobody has the channel.
func (t *tie) keepChannel(self weak.Pointer[tie]) {
	// A goroutine that waits for a channel may hold nothing else, so the weak pointer has to
	// be to the channel itself. A channel is a pointer, but only unsafe can use it as one.
	target := *(**byte)(unsafe.Pointer(&t.root.Load().done))
	t.channel = weak.Make(target)
	t.root.Store(nil)
	runtime.AddCleanup(target, func(self weak.Pointer[tie]) {
		if t := self.Value(); t != nil {
			t.stop()
		}
	}, self)
}
