// Package attemptctx implements the context that an attempt of hedge.Do passes to its function. The context ends when
// the caller's context ends or when the attempt loses. The context of the winner ends only with the caller's context,
// because the caller may still read the result, such as rows of a database.
//
// [context.WithCancel] does not serve: a child that is never cancelled stays registered with its parent. A worker that
// makes all its calls with one context would keep some 570 bytes of each call for ever. Here, the caller's context
// releases a [Context] that has become unreachable. That requires packages weak and unsafe. BenchmarkRetainedBytes measures the
// memory that remains.
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

// A Context is the context of one attempt. A caller's context that never ends does not keep the Context in memory, see
// [callerLink]. A Context is safe for concurrent use.
type Context struct {
	attempt *race.Attempt // set before the attempt starts; its field Context is the caller's context
	primary race.Attempt  // the attempt itself if this is the primary; saves an allocation

	mu   sync.Mutex // guards the fields below
	won  bool
	link *callerLink     // nil until Done needs it
	done <-chan struct{} // the channel that Done returns; set together with link
}

// New returns the context of a hedge.
func New(a *race.Attempt) *Context { return &Context{attempt: a} }

// NewPrimary returns the context of a primary. The context contains the [race.Attempt] as well.
func NewPrimary() *Context {
	d := new(Context)
	d.attempt = &d.primary
	return d
}

// Attempt returns the attempt that the context belongs to.
func (d *Context) Attempt() *race.Attempt { return d.attempt }

// Deadline returns the deadline of the caller's context.
func (d *Context) Deadline() (time.Time, bool) { return d.attempt.Deadline() }

// Value returns a value of the attempt, or else of the caller's context.
func (d *Context) Value(key any) any { return d.attempt.Value(key) }

// Done returns a channel that is closed when the context ends.
func (d *Context) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	caller := d.attempt.Context
	switch {
	case d.link != nil:
		return d.done
	case caller.Done() == nil: // the caller never ends it: no callerLink is needed
		return d.attempt.Done()
	case d.won:
		return caller.Done()
	}
	anchor := &anchorContext{Context: caller}
	own, cancel := context.WithCancelCause(anchor)
	t := newCallerLink(anchor)
	if !d.attempt.AdoptContext(&anchor.own, own, cancel, t.stop) {
		t.stop()
		return d.attempt.Done() // it has lost
	}
	if caller.Err() != nil {
		anchor.end() // at once; the callerLink does it asynchronously
	}
	anchor.done = own.Done()
	d.link, d.done = t, anchor.done
	return d.done
}

// Err returns nil until the context ends, and then the reason. If the caller's context has ended, Err may return its
// error shortly before the channel of Done is closed.
func (d *Context) Err() error {
	if err := d.attempt.Err(); err != nil {
		return err
	}
	return d.attempt.Context.Err()
}

// MarkWon records that the attempt has won. From now on the context ends only when the caller's context ends.
func (d *Context) MarkWon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.won = true
	if d.link != nil {
		d.link.releaseWhenUnreachable(d)
	}
}

// An anchorContext is the parent of the attempt's own context, which package context makes. It has the values and the
// error of the caller's context, and package context registers with it by AfterFunc. So contexts derived from a
// [Context] end with the caller's error and cause, and need no goroutine.
//
// An anchorContext does not refer to the Context; contexts derived from the Context do. The goroutine that first calls
// Done writes the fields before another goroutine can read them.
type anchorContext struct {
	context.Context
	end  func()              // ends the attempt's own context, and keeps it reachable
	done <-chan struct{}     // the Done channel of the attempt's own context
	own  race.AdoptedContext // memory for the [race.Attempt], which refers to it
}

var neverClosed = make(chan struct{})

// Done returns a channel that is never closed. Package context requires a channel that is not nil, and then calls
// AfterFunc instead of waiting.
func (r *anchorContext) Done() <-chan struct{} { return neverClosed }

// AfterFunc stores f, which ends the attempt's own context. Package context calls AfterFunc once.
func (r *anchorContext) AfterFunc(f func()) (stop func() bool) {
	r.end = f
	return func() bool { return false }
}

// A callerLink ends the attempt's own context when the caller's context ends. References form a chain: caller's
// context, callerLink, anchorContext, the attempt's own context, and contexts derived from it. Derived contexts refer
// to the [Context].
//
// When the Context of a winner becomes unreachable, no derived context is in use, and the callerLink drops the
// anchorContext. A goroutine may still wait for the channel of Done. When the channel becomes unreachable too, the
// caller's context drops the callerLink.
//
// The cleanup of the Context writes channel before it clears anchor. The method endAttempt reads them in the opposite
// order.
type callerLink struct {
	anchor  atomic.Pointer[anchorContext] // nil after the Context has become unreachable
	channel weak.Pointer[byte]            // the channel of Done; set before anchor becomes nil
	stop    func() bool                   // unregisters the callerLink from the caller's context
}

func newCallerLink(anchor *anchorContext) *callerLink {
	t := new(callerLink)
	t.anchor.Store(anchor)
	t.stop = context.AfterFunc(anchor.Context, t.endAttempt)
	return t
}

// endAttempt ends the attempt's own context, because the caller's context has ended. If only the channel of Done is
// still reachable, it closes the channel.
func (t *callerLink) endAttempt() {
	if anchor := t.anchor.Load(); anchor != nil {
		anchor.end()
	} else if target := t.channel.Value(); target != nil {
		close(*(*chan struct{})(unsafe.Pointer(&target)))
	}
}

// releaseWhenUnreachable arranges that the references described at [callerLink] are dropped when d, the context of the
// winner, becomes unreachable. The cleanups use no channel, because a cleanup must not use a channel of a
// testing/synctest bubble. They keep neither d nor t reachable.
func (t *callerLink) releaseWhenUnreachable(d *Context) {
	runtime.AddCleanup(d, func(self weak.Pointer[callerLink]) {
		if t := self.Value(); t != nil {
			t.dropAnchor(self)
		}
	}, weak.Make(t))
}

// dropAnchor keeps only a weak reference to the channel of Done, and drops the anchorContext. When the channel becomes
// unreachable, it unregisters the callerLink from the caller's context. The argument self is a weak pointer to t.
func (t *callerLink) dropAnchor(self weak.Pointer[callerLink]) {
	// A goroutine that waits for a channel may hold nothing else, so the weak pointer has to
	// be to the channel itself. A channel is a pointer, but only unsafe can use it as one.
	target := *(**byte)(unsafe.Pointer(&t.anchor.Load().done))
	t.channel = weak.Make(target)
	t.anchor.Store(nil)
	runtime.AddCleanup(target, func(self weak.Pointer[callerLink]) {
		if t := self.Value(); t != nil {
			t.stop()
		}
	}, self)
}
