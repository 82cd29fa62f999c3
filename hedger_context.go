package hedge

import (
	"context"
	"runtime"
	"sync"
	"time"
	"unsafe"
	"weak"

	"github.com/gohedge/hedge/internal/race"
)

// doContext is the context that the function of [Do] runs under. Until the race is
// over it ends with its attempt. If the attempt wins, it ends with the caller's from then
// on: what the function returned, such as rows, may be read for as long as that lasts. A
// caller's context that lives as long as the program keeps nothing of it.
//
// It brings AfterFunc, by which package context derives contexts from it, so that it
// knows what depends on it. When it has won, all that hangs on the caller's instead.
type doContext struct {
	attempt *race.Attempt // its Context is the caller's
	primary race.Attempt  // what attempt points to if this is the primary's: one allocation less

	mu    sync.Mutex // guards the fields below
	won   bool
	done  chan struct{} // nil: nobody has asked for it
	stop  func() bool   // keeps end from being called
	funcs map[*endFunc]struct{}
}

// endFunc is a function that is called when the context ends.
type endFunc struct {
	f    func()
	stop func() bool // once it hangs on the caller's context
}

func (d *doContext) Deadline() (time.Time, bool) { return d.attempt.Deadline() }

func (d *doContext) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.won {
		return d.attempt.Context.Err()
	}
	return d.attempt.Err()
}

func (d *doContext) Value(key any) any {
	d.mu.Lock()
	won := d.won
	d.mu.Unlock()
	if won {
		return d.attempt.CallerValue(key)
	}
	return d.attempt.Value(key)
}

func (d *doContext) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		if d.won {
			return d.attempt.Context.Done()
		}
		d.done = make(chan struct{})
		d.stop = context.AfterFunc(d.attempt, d.end)
	}
	return d.done
}

// AfterFunc is what [context.AfterFunc] calls.
func (d *doContext) AfterFunc(f func()) (stop func() bool) {
	d.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.won {
		return context.AfterFunc(d.attempt.Context, f)
	}
	e := &endFunc{f: f}
	if d.funcs == nil {
		d.funcs = make(map[*endFunc]struct{})
	}
	d.funcs[e] = struct{}{}
	select {
	case <-d.done:
		delete(d.funcs, e)
		go f()
	default:
	}
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if e.stop != nil {
			return e.stop()
		}
		_, waits := d.funcs[e]
		delete(d.funcs, e)
		return waits
	}
}

// end is called when the attempt's context has ended before the attempt has won.
func (d *doContext) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.done)
	for e := range d.funcs {
		go e.f()
	}
	d.funcs = nil
}

// win lets the context live on when its attempt has won, and ends the attempt.
func (d *doContext) win() {
	d.mu.Lock()
	if d.won = d.stop == nil || d.stop(); d.won { // or else it has ended
		for e := range d.funcs {
			e.stop = context.AfterFunc(d.attempt.Context, e.f)
		}
		d.funcs = nil
		if d.done != nil {
			closeAfter(d.attempt.Context, d.done)
		}
	}
	d.mu.Unlock()
	d.attempt.Release()
}

// closeAfter closes done when ctx ends. It keeps nothing alive: when nobody has done any
// more, ctx forgets it. A channel is a pointer, which unsafe is needed to say: whoever waits
// for the channel need not hold anything else that a weak pointer could point to.
func closeAfter(ctx context.Context, done chan struct{}) {
	if ctx.Done() == nil {
		return
	}
	target := *(**byte)(unsafe.Pointer(&done))
	still := weak.Make(target)
	stop := context.AfterFunc(ctx, func() {
		if target := still.Value(); target != nil {
			close(*(*chan struct{})(unsafe.Pointer(&target)))
		}
	})
	runtime.AddCleanup(target, func(stop func() bool) { stop() }, stop)
}
