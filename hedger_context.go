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

// doContext is the context that the function of [Do] runs under. It ends with the
// caller's, or when its attempt loses: what a winner returned, such as rows, may be read for
// as long as the caller's context lasts. A caller's context that lives as long as the program
// keeps nothing of it, see [tie].
type doContext struct {
	attempt *race.Attempt // its Context is the caller's
	primary race.Attempt  // what attempt points to if this is the primary's: one allocation less

	mu   sync.Mutex // guards the fields below
	won  bool
	tie  *tie            // nil: nobody has asked for Done
	done <-chan struct{} // if there is a tie
}

func (d *doContext) Deadline() (time.Time, bool) { return d.attempt.Deadline() }
func (d *doContext) Value(key any) any           { return d.attempt.Value(key) }

func (d *doContext) Done() <-chan struct{} {
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
	root := &doRoot{Context: caller}
	own, cancel := context.WithCancelCause(root)
	t := newTie(root)
	if !d.attempt.Adopt(&root.own, own, cancel, t.stop) {
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

// Err does not wait until the caller's context has passed on that it has ended.
func (d *doContext) Err() error {
	if err := d.attempt.Err(); err != nil {
		return err
	}
	return d.attempt.Context.Err()
}

// win is called when the attempt has won.
func (d *doContext) win() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.won = true
	if d.tie != nil {
		d.tie.outlive(d)
	}
}

// doRoot is the caller's context as the parent of one of package context that is the
// attempt's own: what is derived from a doContext attaches to that without a goroutine, and it
// ends in the words of the caller's context, but hangs on that by a tie only. It does not refer to
// the doContext, but what is derived does.
type doRoot struct {
	context.Context
	end  func()          // ends the attempt's own context, and holds it
	done <-chan struct{} // of that context
	own  race.Own        // for the attempt, which holds it
}

var never = make(chan struct{})

// Done has to be there, but is not waited for: package context calls AfterFunc.
func (r *doRoot) Done() <-chan struct{} { return never }

// AfterFunc is called once, for the attempt's own context.
func (r *doRoot) AfterFunc(f func()) (stop func() bool) {
	r.end = f
	return func() bool { return false }
}

// tie ends the attempt's own context with the caller's, which holds the tie, and so the root,
// all contexts derived from it, and through these the doContext. When nobody has that any
// more, nothing is derived from it either, and the tie lets go of the root: all that
// somebody can still have is the channel. When nobody has that, the caller's context
// forgets the tie.
type tie struct {
	root    atomic.Pointer[doRoot] // nil: nobody has the context
	channel weak.Pointer[byte]     // set before root becomes nil
	stop    func() bool            // makes the caller's context forget the tie
}

func newTie(root *doRoot) *tie {
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

// outlive lets the tie go as soon as nobody needs it, when d has won: first of the root, when
// nobody has d, and then of the caller's context. The cleanups use no channel, which in a
// bubble of testing/synctest they must not, and hold nothing.
func (t *tie) outlive(d *doContext) {
	runtime.AddCleanup(d, func(self weak.Pointer[tie]) {
		if t := self.Value(); t != nil {
			t.keepChannel(self)
		}
	}, weak.Make(t))
}

// keepChannel lets go of the root, and of the caller's context when nobody has the channel.
func (t *tie) keepChannel(self weak.Pointer[tie]) {
	// Whoever waits for a channel need not hold anything else, so that the weak pointer has
	// to be to the channel itself. A channel is a pointer, which only unsafe can say.
	target := *(**byte)(unsafe.Pointer(&t.root.Load().done))
	t.channel = weak.Make(target)
	t.root.Store(nil)
	runtime.AddCleanup(target, func(self weak.Pointer[tie]) {
		if t := self.Value(); t != nil {
			t.stop()
		}
	}, self)
}
