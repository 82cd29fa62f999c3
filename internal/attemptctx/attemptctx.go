// Package attemptctx implements the context that an attempt of hedge.Do passes to the user's function. The context ends
// when the caller's context ends or when the attempt loses. The context of the winner ends only with the caller's
// context, because the caller may still read the result, such as rows of a database.
//
// [context.WithCancel] is not suitable: a child context that is never cancelled stays registered with its parent.
//
// A worker that makes all its calls with the same context would retain some 570 bytes for each call until it ends.
// Here, the caller's context releases a [Context] that has become unreachable. That requires packages weak and unsafe.
// BenchmarkRetainedBytes measures the memory that remains.
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

// A Context is the [context.Context] of one attempt of hedge.Do. After the attempt has won and the program no longer
// uses the Context, the caller's context does not keep it in memory. A Context is safe for concurrent use.
type Context struct {
	attempt *race.Attempt // set before the attempt starts; its field Context is the caller's context
	primary race.Attempt  // memory for the attempt if it is the primary; saves an allocation

	mu   sync.Mutex      // guards the fields below
	won  bool            // the attempt has won, so only the caller's context ends this Context
	link *callerLink     // ends the Context with the caller's context; nil until Done is called and needs it
	done <-chan struct{} // the channel that Done returns; set together with link
}

// New returns the context of a hedge. The argument a is the hedge's attempt, whose field Context is the caller's
// context.
func New(a *race.Attempt) *Context { return &Context{attempt: a} }

// NewPrimary returns the context of a primary. It also allocates the primary's [race.Attempt], which the method Attempt
// returns.
func NewPrimary() *Context {
	d := new(Context)
	d.attempt = &d.primary
	return d
}

// Attempt returns the [race.Attempt] to which the context belongs.
func (d *Context) Attempt() *race.Attempt { return d.attempt }

// Deadline returns the deadline of the caller's context. The second result is false if there is no deadline.
func (d *Context) Deadline() (time.Time, bool) { return d.attempt.Deadline() }

// Value returns a value of the attempt, or a value of the caller's context if the attempt has none for the key.
func (d *Context) Value(key any) any { return d.attempt.Value(key) }

// Done returns a channel that is closed when the context ends.
func (d *Context) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	caller := d.attempt.Context
	switch {
	case d.link != nil:
		return d.done
	case caller.Done() == nil: // the caller's context never ends, so no callerLink is needed
		return d.attempt.Done()
	case d.won:
		return caller.Done()
	}
	anchor := &anchorContext{Context: caller}
	own, cancel := context.WithCancelCause(anchor)
	t := newCallerLink(anchor)
	if !d.attempt.AdoptContext(&anchor.own, own, cancel, t.stop) {
		t.stop()
		return d.attempt.Done() // the attempt has lost
	}
	if caller.Err() != nil {
		anchor.end() // end the context now; the callerLink would end it asynchronously
	}
	anchor.done = own.Done()
	d.link, d.done = t, anchor.done
	return d.done
}

// Err returns nil until the context ends, and then the reason. If the caller's context ends, Err may return the reason
// shortly before the channel that Done returned is closed.
func (d *Context) Err() error {
	if err := d.attempt.Err(); err != nil {
		return err
	}
	return d.attempt.Context.Err()
}

// MarkWon records that the attempt has won. From then on, the context ends only when the caller's context ends.
func (d *Context) MarkWon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.won = true
	if d.link != nil {
		d.link.releaseWhenUnreachable(d)
	}
}

// An anchorContext is the parent of the attempt's own context, which [context.WithCancelCause] creates. It stands between
// that context and the caller's context, so that the caller's context does not refer to it directly.
//
// The anchorContext has the values and the error of the caller's context. Package context calls AfterFunc to register the
// attempt's own context. So contexts derived from a [Context] end with the caller's error and cause, and need no goroutine.
//
// An anchorContext does not refer to the Context, so it does not keep the Context in memory. The goroutine that first calls
// Context.Done writes the fields before another goroutine can read them.
type anchorContext struct {
	context.Context
	end  func()              // ends the attempt's own context; the reference also keeps that context in memory
	done <-chan struct{}     // the Done channel of the attempt's own context
	own  race.AdoptedContext // memory for the [race.Attempt], which refers to it
}

// neverClosed is the Done channel of every anchorContext.
var neverClosed = make(chan struct{})

// Done returns a channel that is never closed. If the channel were nil, package context would assume that the context
// never ends, and would not call AfterFunc.
func (r *anchorContext) Done() <-chan struct{} { return neverClosed }

// AfterFunc stores f, which ends the attempt's own context. Package context calls it exactly once for an anchorContext.
// The function stop always returns false.
func (r *anchorContext) AfterFunc(f func()) (stop func() bool) {
	r.end = f
	return func() bool { return false }
}

// A callerLink ends the attempt's own context when the caller's context ends. It must not keep an unused [Context] of a
// winner in memory, because the caller's context may live much longer.
//
// References form a chain: the caller's context refers to the callerLink, which refers to the anchorContext, which refers to
// the attempt's own context. Contexts that the program derives from the attempt's own context refer to the Context.
//
// When the Context of a winner becomes unreachable, no derived context is in use, and the callerLink drops the
// anchorContext. A goroutine may still wait for the channel of Done. When the channel becomes unreachable too, the
// callerLink is unregistered from the caller's context.
//
// The cleanup of the Context writes the field channel before it clears the field anchor. The method endAttempt reads these
// fields in the opposite order.
type callerLink struct {
	anchor  atomic.Pointer[anchorContext] // nil after the Context has become unreachable
	channel weak.Pointer[byte]            // the channel that Context.Done returned; set before anchor becomes nil
	stop    func() bool                   // the function by which [context.AfterFunc] unregisters the callerLink from the caller's context
}

// newCallerLink returns a callerLink that ends the attempt's own context, by calling anchor.end, when the caller's context
// ends. The caller's context is the parent of anchor.
func newCallerLink(anchor *anchorContext) *callerLink {
	t := new(callerLink)
	t.anchor.Store(anchor)
	t.stop = context.AfterFunc(anchor.Context, t.endAttempt)
	return t
}

// endAttempt ends the attempt's own context. Package context calls it when the caller's context has ended. If the
// anchorContext was dropped, endAttempt only closes the channel of Done, if a goroutine may still wait for it.
func (t *callerLink) endAttempt() {
	if anchor := t.anchor.Load(); anchor != nil {
		anchor.end()
	} else if target := t.channel.Value(); target != nil {
		close(*(*chan struct{})(unsafe.Pointer(&target)))
	}
}

// releaseWhenUnreachable lets the garbage collector free the winner's context d while the caller's context is still in use.
// It registers a cleanup of d that calls dropAnchor.
//
// The cleanup functions keep neither d nor t reachable. They use no channel: with testing/synctest, a cleanup function must
// not use a channel of a bubble.
func (t *callerLink) releaseWhenUnreachable(d *Context) {
	runtime.AddCleanup(d, func(self weak.Pointer[callerLink]) {
		if t := self.Value(); t != nil {
			t.dropAnchor(self)
		}
	}, weak.Make(t))
}

// dropAnchor makes the attempt's own context collectable after the winner's Context has become unreachable. It drops the
// anchorContext, and keeps a weak reference to the channel of Done, for which a goroutine may still wait.
//
// When that channel becomes unreachable, a cleanup function unregisters the callerLink from the caller's context. The
// argument self is a weak pointer to t.
func (t *callerLink) dropAnchor(self weak.Pointer[callerLink]) {
	// A goroutine that waits for a channel may refer to nothing else, so the weak pointer must point
	// to the channel itself. A channel is a pointer, but only package unsafe can convert it to one.
	target := *(**byte)(unsafe.Pointer(&t.anchor.Load().done))
	t.channel = weak.Make(target)
	t.anchor.Store(nil)
	runtime.AddCleanup(target, func(self weak.Pointer[callerLink]) {
		if t := self.Value(); t != nil {
			t.stop()
		}
	}, self)
}
