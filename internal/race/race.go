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
	// once for each attempt but the one that Run returns, never in the goroutine
	// that called Run, and maybe after Run has returned. The error is a *Panic if
	// the attempt did not return.
	Discard(v T, err error)
}

// A Gate is asked whether a hedge may start, when a delay has passed and the
// primary is still out.
type Gate interface {
	// Admit decides about the hedge that is due at the delay with the given index.
	// It is called with the race locked and must not block. If it panics, or ends its
	// goroutine, the hedge is not admitted.
	Admit(index int) bool

	// Ended is called once for each hedge that was admitted, when its Attempt has
	// returned. n is the number of the attempt.
	Ended(n int)
}

// An Outcome is how an attempt ended.
type Outcome int

// The outcomes.
const (
	Won    Outcome = iota
	Lost           // another attempt had won before, or it was not sent, or its server turned it away
	Failed         // by itself, or because the caller gave up
)

// String returns the word that package observe has for it.
func (o Outcome) String() string { return [...]string{Won: "won", Lost: "lost", Failed: "failed"}[o] }

// A Watch is told of every attempt, by the goroutine that makes it. It must not
// block: Finished may be called with the race locked. A loser may finish after
// Run has returned. A Watch may end the goroutine by runtime.Goexit, but must not panic.
type Watch interface {
	Started(ctx context.Context, n int)
	Finished(ctx context.Context, n int, how Outcome)
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
	// Prompt cancels losers instead of letting them linger, if their [Guard] allows that at
	// once: later they would be nearer to their answer.
	Prompt bool
	// Leave is asked, with the race locked, when the caller's context ends and the primary of a
	// detached race has not returned. If it reports true, Run returns with that context's
	// error at once, and what still runs is discarded when it ends. Otherwise, or if Leave is
	// nil, Run waits for the primary.
	Leave func() bool
	// Join makes Run wait until every attempt has returned.
	Join bool
	// Watch is told of every attempt; nil: nobody is.
	Watch Watch
	// Primary is used as the primary's Attempt, for an adapter that has a zero one in memory
	// of its own; nil: a new one. Nobody else may have it, also after the race.
	Primary *Attempt
}

// A Result is how a race ended.
type Result[T any] struct {
	Value   T
	Err     error    // the primary's, if every attempt failed
	Winner  int      // the attempt that gave Value; -1 if all failed
	Started int      // attempts started, the primary included
	Attempt *Attempt // of Value; release it if it holds its caller's context; nil if the caller left it behind
}

// A Panic is the error of an attempt that panicked, or left its goroutine.
type Panic struct {
	Value any    // nil if the attempt called runtime.Goexit
	Stack []byte // of the panic
}

func (p *Panic) Error() string {
	return fmt.Sprintf("hedge: attempt panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns what the attempt panicked with, if that is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// raise panics in the caller's goroutine, where the stack of the attempt is lost, so it is
// put into the text. An error that the runtime did not make goes out as it is: those who
// recover compare it, as they do [http.ErrAbortHandler].
func (p *Panic) raise() {
	if p.Value == nil {
		runtime.Goexit()
	}
	if _, ok := p.Value.(runtime.Error); !ok && p.Unwrap() != nil {
		panic(p.Value)
	}
	panic(p)
}

// A Race is one run of an operation. The zero value is ready. After Run it may
// be used again if Reset reports true. It must not be copied.
type Race[T any] struct {
	op     Op[T]
	gate   Gate
	parent context.Context
	delays []time.Duration
	style  Style

	timer *time.Timer   // calls fire; kept when the race is used again
	wake  chan struct{} // capacity 1: something happened that Run may wait for; kept as well
	alone func()        // runs a detached primary; kept as well, so that go needs no closure
	fired atomic.Bool   // fire was called
	late  bool          // fire may still be called though Run has returned

	mu          sync.Mutex // guards the fields below
	over        bool       // Run has its result
	index       int        // of the delay that the timer is set to
	started     int        // attempts
	unfinished  int        // attempts that have not returned and cleaned up
	winner      int        // -1: none yet
	primaryDone bool       // the primary has returned
	value       T          // the winner's, or else the primary's
	err         error
	attempts    [1 + MaxHedges]attempt
}

type attempt struct {
	*Attempt
	running bool   // has not returned
	forget  func() // takes it off the lingering losers; nil if it does not linger
}

// Run races op until an attempt succeeds or all have failed. The primary
// starts at once; a hedge starts at each of delays (counted from now, rising)
// at which the call is unanswered and gate admits it, MaxHedges at most. There
// may be more delays than that, for a gate that does not admit all.
//
// If all attempts fail, the primary's value and error are returned as they
// are. A primary that fails while no hedge is out is returned at once, and so
// it is once parent ends; see also Style.Leave. A panic in the primary is raised in the caller's
// goroutine (a detached one's only if no hedge won, as a *Panic unless it is an error
// of its own); a panic in a hedge is a failed attempt.
func (r *Race[T]) Run(parent context.Context, op Op[T], gate Gate, delays []time.Duration, style Style) Result[T] {
	r.op, r.gate, r.parent, r.delays, r.style = op, gate, parent, delays, style
	primary := style.Primary
	if primary == nil {
		primary = new(Attempt)
	}
	primary.Context, primary.detached = parent, style.Detach
	r.winner, r.started, r.unfinished = -1, 1, 1
	r.attempts[0] = attempt{Attempt: primary, running: true}
	if style.Detach && r.wake == nil {
		r.wake = make(chan struct{}, 1)
		r.alone = func() { r.run(r.attempts[0].Attempt, 0) }
	}
	if len(delays) > 0 {
		r.arm(delays[0])
	}
	if style.Detach {
		go r.alone()
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
	if len(delays) == 0 || (r.timer.Stop() && !r.fired.Load()) {
		returned = true
		out := Result[T]{Value: v, Err: err, Started: 1, Attempt: primary}
		if err != nil {
			out.Winner = -1
		}
		if style.Watch != nil {
			style.Watch.Finished(primary, 0, OutcomeOf(err))
		}
		return out
	}
	r.finish(0, v, err)
	out := r.await()
	returned = true
	return out
}

// Reset makes the race ready for another Run and reports true, or reports
// false if something may still refer to it. Call it at most once after Run.
func (r *Race[T]) Reset() bool {
	if r.late || r.fired.Load() {
		return false
	}
	var none T
	r.op, r.gate, r.parent, r.delays, r.style = nil, nil, nil, nil, Style{}
	r.over, r.primaryDone, r.value, r.err = false, false, none, nil
	r.attempts[0] = attempt{}
	return true
}

func (r *Race[T]) arm(d time.Duration) {
	if r.timer == nil {
		r.timer = time.AfterFunc(math.MaxInt64, r.fire) // not yet d: fire reads timer
	}
	r.timer.Reset(d)
}

// fire is called by the timer when a delay has passed.
func (r *Race[T]) fire() {
	r.fired.Store(true)
	if a, n := r.next(); a != nil {
		r.run(a, n)
	}
}

// next arms the timer again, and returns the attempt to make now, if any.
func (r *Race[T]) next() (a *Attempt, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.winner >= 0 || r.unfinished == 0 {
		return nil, 0
	}
	index := r.index
	if r.index++; r.index < len(r.delays) {
		r.arm(r.delays[r.index] - r.delays[index])
	}
	if r.started > MaxHedges || !r.admit(index) {
		return nil, 0
	}
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	n, a = r.started, &Attempt{Context: r.parent, n: uint8(r.started), detached: r.style.Detach}
	r.attempts[n] = attempt{Attempt: a, running: true}
	r.started++
	r.unfinished++
	return a, n
}

// exited is the error of an attempt that called runtime.Goexit.
var exited = new(Panic)

// admit asks the gate. A gate that panics does not admit: the timer's goroutine has nobody
// to raise the panic in.
func (r *Race[T]) admit(index int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return r.gate.Admit(index)
}

// run makes attempt n in the goroutine it was called in.
func (r *Race[T]) run(a *Attempt, n int) {
	var (
		v   T
		err error = exited // unless Attempt returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
		if n > 0 {
			r.gate.Ended(n)
		}
		r.finish(n, v, err)
	}()
	if w := r.style.Watch; w != nil {
		w.Started(a, n)
	}
	v, err = r.op.Attempt(a, n)
}

// OutcomeOf returns what becomes of an attempt that somebody waits for and that returns err.
func OutcomeOf(err error) Outcome {
	switch err {
	case nil:
		return Won
	case ErrRefused:
		return Lost
	default:
		return Failed
	}
}

// finish takes what attempt n returned:
//
//	the race      the attempt            what it returned
//	is open       succeeded              wins; what a failed primary returned is discarded
//	is open       failed, the primary    is kept, in case every hedge fails as well
//	is open       failed, a hedge        is discarded
//	has a winner  any                    is discarded
//	is over       any                    is discarded
//
// Open means that Run waits for a result and has none.
func (r *Race[T]) finish(n int, v T, err error) {
	r.mu.Lock()
	me := &r.attempts[n]
	me.running = false
	open := !r.over && r.winner < 0
	if n == 0 {
		r.primaryDone = true
	}
	defer r.take(n, v, err, open) // also if the watch ends the goroutine
	if r.style.Watch != nil {
		r.tell(n, err, open)
	}
}

// tell tells the watch that attempt n has finished, before Run can return: the watch may be
// used again then. The caller holds mu.
func (r *Race[T]) tell(n int, err error, open bool) {
	how := OutcomeOf(err)
	if !open && (err == nil || r.winner >= 0) {
		how = Lost
	}
	r.style.Watch.Finished(r.attempts[n].Attempt, n, how)
}

// take is the rest of finish. The caller holds mu, which take unlocks.
func (r *Race[T]) take(n int, v T, err error, open bool) {
	switch me := &r.attempts[n]; {
	case open && err == nil:
		v, err = r.win(n, v)
		op, primary, failed := r.op, r.attempts[0].Attempt, n > 0 && r.primaryDone
		r.notify()
		r.mu.Unlock()
		if failed {
			discard(op, v, err, primary, nil)
		}
	case open && n == 0:
		r.value, r.err = v, err
		r.unfinished--
		r.notify()
		r.mu.Unlock()
	default:
		r.unfinished-- // before what it returned is discarded: nobody waits for that
		op, a, forget, inCaller := r.op, me.Attempt, me.forget, n == 0 && !r.style.Detach
		r.notify()
		r.mu.Unlock()
		if inCaller {
			go discard(op, v, err, a, forget)
		} else {
			discard(op, v, err, a, forget)
		}
	}
}

// discard releases what a loser or a failed attempt returned, and the attempt with it.
func discard[T any](op Op[T], v T, err error, a *Attempt, forget func()) {
	defer func() {
		_ = recover() // of what belongs to nobody any more: it must not end the process
		a.Release()
		if forget != nil {
			forget()
		}
	}()
	op.Discard(v, err)
}

// win makes attempt n, which returned v, the winner. It returns what the primary has
// returned if that has failed. The caller holds mu.
func (r *Race[T]) win(n int, v T) (T, error) {
	kept, err := r.value, r.err
	r.winner, r.value, r.err = n, v, nil
	r.unfinished--
	r.lose(r.style.Linger, ErrLost)
	return kept, err
}

// lose cancels the attempts that are still out, or lets them linger. The caller holds mu.
func (r *Race[T]) lose(linger *Linger, cause error) {
	for i := range r.attempts {
		switch me := &r.attempts[i]; {
		case !me.running:
		case linger != nil && !me.waits() && !(r.style.Prompt && me.prompt()):
			me.forget = linger.add(me.Attempt, r.style.Grace)
		default:
			me.cancel(cause)
		}
	}
}

// notify wakes Run if it waits.
func (r *Race[T]) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// await waits for the outcome. The primary has returned, or is detached.
func (r *Race[T]) await() Result[T] {
	done, left, stays := r.parent.Done(), false, r.style.Leave == nil
	if r.style.Join {
		done = nil
	}
	r.mu.Lock()
	for !r.settled() && !left {
		ended := done
		if !r.primaryDone && stays {
			ended = nil // the primary knows that the caller is gone, and will say it in its own words
		}
		r.mu.Unlock()
		gone := false
		if ended == nil {
			<-r.wake // cheaper than a select
		} else {
			select {
			case <-r.wake:
			case <-ended:
				gone = true
			}
		}
		r.mu.Lock()
		switch {
		case !gone || r.settled():
		case r.primaryDone:
			left = true // the hedges that are out end with the caller's context as well
		default:
			left = r.style.Leave()
			stays = !left
		}
	}
	r.over = true
	out := Result[T]{Value: r.value, Err: r.err, Winner: r.winner, Started: r.started}
	switch {
	case r.winner >= 0:
		out.Attempt = r.attempts[r.winner].Attempt
	case r.primaryDone:
		out.Attempt = r.attempts[0].Attempt
	default:
		out.Err = r.parent.Err()
		r.late = true
	}
	r.mu.Unlock()
	if r.timer != nil && len(r.delays) > 0 && !r.timer.Stop() {
		r.late = true
	}
	if p, ok := out.Err.(*Panic); ok {
		p.raise()
	}
	return out
}

// settled reports whether Run can return. The caller holds mu.
func (r *Race[T]) settled() bool {
	switch {
	case r.style.Join:
		return r.unfinished == 0
	case r.winner >= 0:
		return r.primaryDone || r.style.Detach
	default:
		return r.primaryDone && r.unfinished == 0
	}
}

// abandon ends the race when the caller leaves Run by a panic or runtime.Goexit.
func (r *Race[T]) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over, r.late = true, true
	r.lose(nil, ErrLost)
	if r.winner >= 0 || r.primaryDone {
		go discard(r.op, r.value, r.err, r.attempts[max(r.winner, 0)].Attempt, nil)
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	if w := r.style.Watch; w != nil && !r.primaryDone {
		w.Finished(r.attempts[0].Attempt, 0, Failed)
	}
}
