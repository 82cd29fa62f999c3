// Package race runs an operation as a primary attempt and, if that is slow,
// as hedges beside it, and keeps the first success.
//
// It decides who wins and who cleans up, nothing else: when a hedge is due
// comes in as a list of delays, and whether it may start is asked of a [Gate].
// The idea is dialParallel's in package net: an attempt that finds nobody
// listening cleans up after itself.
package race

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// MaxHedges is the most hedges that one race can start.
const MaxHedges = 3

// An Op is what is raced. Its methods are called from several goroutines.
type Op[T any] interface {
	// Attempt makes attempt n; attempt 0 is the primary. A nil error means that
	// v is an answer. With an error, v is returned only if every attempt fails
	// and this is the primary. It must return soon after a is done.
	Attempt(a *Attempt, n int) (v T, err error)

	// Discard releases what an attempt returned and nobody wants. It is called
	// once for each attempt but the one that Run returns. The error is a *Panic
	// if the attempt did not return.
	Discard(v T, err error)
}

// A Gate is asked whether a hedge may start, when a delay has passed and the
// primary is still out. It is called with the race locked and must not block.
type Gate interface {
	Admit(stage int) bool
}

// A Fate is what became of an attempt.
type Fate int

// The fates.
const (
	Won    Fate = iota
	Lost        // another attempt had won before
	Failed      // by itself, or because the caller gave up
)

// A Watch is told of every attempt, by the goroutine that makes it. It must not
// block: Landed may be called with the race locked. A loser may land after Run
// has returned.
type Watch interface {
	Started(ctx context.Context, n int)
	Landed(ctx context.Context, n int, how Fate)
}

// Style is how the attempts of a race run and end. The zero Style runs the
// primary in the caller's goroutine, cancels losers and does not wait for hedges.
type Style struct {
	// Detach runs the primary in a goroutine of its own, so that Run can return
	// without it when a hedge wins.
	Detach bool
	// Linger lets losers run on, each for as long as Grace; nil cancels them at once.
	// It is for detached races.
	Linger *Linger
	Grace  time.Duration
	// Join makes Run wait until every attempt has returned.
	Join bool
	// Watch is told of every attempt; nil: nobody is.
	Watch Watch
}

// An Outcome is what a race came to.
type Outcome[T any] struct {
	Value   T
	Err     error    // the primary's, if every attempt failed
	Winner  int      // the attempt that gave Value; -1 if all failed
	Started int      // attempts started, the primary included
	Attempt *Attempt // of Value; release it if it holds its caller's context
}

// A Panic is the error of an attempt that panicked, or left its goroutine.
type Panic struct {
	Value any    // nil if the attempt called runtime.Goexit
	Stack []byte // of the panic
}

func (p *Panic) Error() string { return fmt.Sprintf("hedge: attempt panicked: %v", p.Value) }

// A Race is one run of an operation. The zero value is ready. After Run it may
// be used again if Reset reports true. It must not be copied.
type Race[T any] struct {
	op     Op[T]
	gate   Gate
	parent context.Context
	delays []time.Duration
	style  Style

	timer *time.Timer   // runs strike; kept when the race is used again
	wake  chan struct{} // capacity 1: something happened that Run may wait for; kept as well
	fired atomic.Bool   // strike has run
	late  bool          // strike may be on its way though Run has returned

	mu      sync.Mutex // guards the fields below
	over    bool       // nobody listens any more
	stage   int        // of the next strike
	started int
	running int  // attempts that have not returned and cleaned up
	winner  int  // -1: none yet
	landed  bool // the primary has returned
	value   T    // the winner's, or else the primary's
	err     error
	tries   [1 + MaxHedges]try
}

type try struct {
	*Attempt
	flying bool   // has not returned
	done   func() // ends its lingering; may be nil
}

// Run races op until an attempt succeeds or all have failed. The primary
// starts at once; a hedge starts at each of delays (counted from now, rising)
// at which the call is unanswered and gate admits it, MaxHedges at most. There
// may be more delays than that, for a gate that does not admit all.
//
// If all attempts fail, the primary's value and error are returned as they
// are. A primary that fails while no hedge is out is returned at once, and so
// it is once parent ends. A panic in the primary is raised in the caller's
// goroutine (a detached one's only if no hedge won); a panic in a hedge is a
// failed attempt.
func (r *Race[T]) Run(parent context.Context, op Op[T], gate Gate, delays []time.Duration, style Style) Outcome[T] {
	r.op, r.gate, r.parent, r.delays, r.style = op, gate, parent, delays, style
	primary := &Attempt{Context: parent, apart: style.Detach}
	r.winner, r.started, r.running = -1, 1, 1
	r.tries[0] = try{Attempt: primary, flying: true}
	if style.Detach && r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	if len(delays) > 0 {
		r.arm(delays[0])
	}
	if style.Detach {
		go r.fly(primary, 0)
		return r.await()
	}

	returned := false
	defer func() {
		if !returned {
			r.abandon()
		}
	}()
	if style.Watch != nil {
		style.Watch.Started(primary, 0)
	}
	v, err := op.Attempt(primary, 0)
	returned = true
	if len(delays) == 0 || (r.timer.Stop() && !r.fired.Load()) {
		out := Outcome[T]{Value: v, Err: err, Started: 1, Attempt: primary}
		if err != nil {
			out.Winner = -1
		}
		if style.Watch != nil {
			style.Watch.Landed(primary, 0, FateOf(err))
		}
		return out
	}
	r.land(0, v, err)
	return r.await()
}

// Reset makes the race ready for another Run and reports true, or reports
// false if something may still refer to it. Call it at most once after Run.
func (r *Race[T]) Reset() bool {
	if r.late || r.fired.Load() {
		return false
	}
	var none T
	r.op, r.gate, r.parent, r.delays, r.style = nil, nil, nil, nil, Style{}
	r.over, r.landed, r.value, r.err = false, false, none, nil
	r.tries[0] = try{}
	return true
}

func (r *Race[T]) arm(d time.Duration) {
	if r.timer == nil {
		r.timer = time.AfterFunc(math.MaxInt64, r.strike) // not yet d: strike reads timer
	}
	r.timer.Reset(d)
}

// strike is called by the timer when a delay has passed.
func (r *Race[T]) strike() {
	r.fired.Store(true)
	r.mu.Lock()
	if r.over || r.winner >= 0 || r.running == 0 {
		r.mu.Unlock()
		return
	}
	stage := r.stage
	if r.stage++; r.stage < len(r.delays) {
		r.arm(r.delays[r.stage] - r.delays[stage])
	}
	if r.started > MaxHedges || !r.gate.Admit(stage) {
		r.mu.Unlock()
		return
	}
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	n, a := r.started, &Attempt{Context: r.parent, n: uint8(r.started), apart: r.style.Detach}
	r.tries[n] = try{Attempt: a, flying: true}
	r.started++
	r.running++
	r.mu.Unlock()
	r.fly(a, n)
}

// fly makes attempt n in the goroutine it was called in.
func (r *Race[T]) fly(a *Attempt, n int) {
	var (
		v   T
		err error = &Panic{} // unless Attempt returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
		r.land(n, v, err)
	}()
	if w := r.style.Watch; w != nil {
		w.Started(a, n)
	}
	v, err = r.op.Attempt(a, n)
}

// FateOf returns what becomes of an attempt that somebody waits for and that returns err.
func FateOf(err error) Fate {
	if err != nil {
		return Failed
	}
	return Won
}

// land takes what attempt n returned: keeps it, or discards it.
func (r *Race[T]) land(n int, v T, err error) {
	r.mu.Lock()
	me := &r.tries[n]
	me.flying = false
	listening := !r.over && r.winner < 0
	if n == 0 {
		r.landed = true
	}
	if w := r.style.Watch; w != nil { // before Run can return: the watch may be used again then
		how := FateOf(err)
		if !listening && (err == nil || r.winner >= 0) {
			how = Lost
		}
		w.Landed(me.Attempt, n, how)
	}
	switch {
	case listening && err == nil:
		heldValue, heldErr := r.value, r.err // the primary's, if it failed before
		r.winner, r.value, r.err = n, v, nil
		r.running--
		r.lose(r.style.Linger, ErrLost)
		r.tell()
		if n == 0 || !r.landed {
			r.mu.Unlock()
			return
		}
		op, primary := r.op, r.tries[0].Attempt
		r.mu.Unlock()
		op.Discard(heldValue, heldErr)
		primary.Release()
	case listening && n == 0:
		r.value, r.err = v, err
		r.running--
		r.tell()
		r.mu.Unlock()
	default:
		r.tell()
		r.mu.Unlock()
		r.op.Discard(v, err)
		me.Release()
		if me.done != nil {
			me.done()
		}
		r.mu.Lock()
		r.running--
		r.tell()
		r.mu.Unlock()
	}
}

// lose cancels the attempts that are still out, or lets them linger. The caller holds mu.
func (r *Race[T]) lose(linger *Linger, cause error) {
	for i := range r.tries {
		switch me := &r.tries[i]; {
		case !me.flying:
		case linger != nil:
			me.done = linger.add(me.Attempt, r.style.Grace)
		default:
			me.cancel(cause)
		}
	}
}

// tell wakes Run if it waits.
func (r *Race[T]) tell() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// await waits for the outcome. The primary has returned, or is detached.
func (r *Race[T]) await() Outcome[T] {
	r.mu.Lock()
	for !r.settled() {
		done := r.parent.Done()
		if !r.landed || r.style.Join {
			done = nil // the primary knows that the caller is gone, and will say it in its own words
		}
		r.mu.Unlock()
		gone := false
		select {
		case <-r.wake:
		case <-done:
			gone = true
		}
		r.mu.Lock()
		if gone && !r.settled() {
			r.lose(nil, context.Cause(r.parent))
			break
		}
	}
	r.over = true
	out := Outcome[T]{Value: r.value, Err: r.err, Winner: r.winner, Started: r.started, Attempt: r.tries[max(r.winner, 0)].Attempt}
	r.mu.Unlock()
	if r.timer != nil && len(r.delays) > 0 && !r.timer.Stop() {
		r.late = true
	}
	if p, ok := out.Err.(*Panic); ok {
		if p.Value == nil {
			runtime.Goexit()
		}
		panic(p.Value)
	}
	return out
}

// settled reports whether Run can return. The caller holds mu.
func (r *Race[T]) settled() bool {
	switch {
	case r.style.Join:
		return r.running == 0
	case r.winner >= 0:
		return r.landed || r.style.Detach
	default:
		return r.landed && r.running == 0
	}
}

// abandon ends the race when the primary leaves Run by a panic.
func (r *Race[T]) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over, r.late = true, true
	if w := r.style.Watch; w != nil {
		w.Landed(r.tries[0].Attempt, 0, Failed)
	}
	r.lose(nil, ErrLost)
	if r.winner >= 0 {
		go func(op Op[T], v T, a *Attempt) {
			op.Discard(v, nil)
			a.Release()
		}(r.op, r.value, r.tries[r.winner].Attempt)
	}
	if r.timer != nil {
		r.timer.Stop()
	}
}
