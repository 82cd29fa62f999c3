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
const MaxHedges = 4

// An Op is what is raced. Its methods are called from several goroutines.
type Op[T any] interface {
	// Attempt makes attempt n; attempt 0 is the primary. A nil error means that
	// v is a success, and [ErrAnswer] that it is an answer if this is the primary. With
	// any other error, v is returned only if every attempt fails and this is the primary.
	// It must return soon after a is done.
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

// A Pacer is a Gate that says itself when it is asked, once the delays are used up.
type Pacer interface {
	Gate

	// Next returns how long it takes until Admit is called again, with the next index, or reports
	// false if that is not to be. It is called after Admit, with the race locked.
	Next() (wait time.Duration, again bool)
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
type Style[T any] struct {
	// Detach runs the primary in a goroutine of its own, so that Run can return
	// without it when a hedge wins.
	Detach bool
	// Sever cuts attempts that still run when Run returns off the caller's context: they do not
	// use it any more. Of its values they find those that hedges have been asked for before.
	Sever bool
	// SeverHedges is Sever for hedges alone: for a primary that uses nothing of its own once it has returned.
	SeverHedges bool
	// Losers decides how losers of a detached race end; nil: they are cancelled at once.
	Losers Losers[T]
	// Leave is asked, with the race locked, when the caller's context ends and the primary of a
	// detached race has not returned. If it reports true, Run returns with that context's
	// error at once, and what still runs is discarded when it ends. Otherwise, or if Leave is
	// nil, Run waits for the primary.
	Leave func() bool
	// Usual is how long an answer usually takes at most, such as the 99th percentile. It bounds
	// how long a primary that has failed waits for hedges, see [Bound]; 0: it is not known.
	Usual time.Duration
	// Watch is told of every attempt; nil: nobody is.
	Watch Watch
	// Primary is used as the primary's Attempt, for an adapter that has a zero one in memory
	// of its own; nil: a new one. Nobody else may have it, also after the race.
	Primary *Attempt
	// Fresh makes a timer and a channel for this run alone. A bubble of testing/synctest needs that: timers
	// and channels of other bubbles do not work there, and its own do not work outside.
	Fresh bool
	// Call is what is called, such as a host or a method: contexts of attempts carry it, so that hedging below
	// recognises a call that is hedged already. The zero value: they do not.
	Call Called
}

// A Result is how a race ended.
type Result[T any] struct {
	Value    T
	Err      error    // the primary's, if every attempt failed
	Winner   int      // the attempt that gave Value; -1 if all failed
	Started  int      // attempts started, the primary included
	NotTaken int      // hedges that came with ErrAnswer while the race was open
	Attempt  *Attempt // of Value; release it if it holds its caller's context; nil if the caller left it behind
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

// Raise panics in the caller's goroutine, where the stack of the attempt is lost, so it is
// put into the text. An error that the runtime did not make goes out as it is: those who
// recover compare it, as they do [http.ErrAbortHandler].
func (p *Panic) Raise() {
	if p.Value == nil {
		runtime.Goexit()
	}
	if _, ok := p.Value.(runtime.Error); !ok && p.Unwrap() != nil {
		panic(p.Value)
	}
	panic(p)
}

// Catch returns what f returns, or a *Panic if f panics: for a goroutine whose owner is to raise it.
func Catch(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// A Race is one run of an operation. The zero value is ready. After Run it may
// be used again if Reset reports true. It must not be copied.
type Race[T any] struct {
	op     Op[T]
	gate   Gate
	parent context.Context
	delays []time.Duration

	// Style is set before Run, in place: a copy of a struct that has just been written makes the processor wait. Reset clears it.
	Style Style[T]

	timer *time.Timer   // calls fire; kept when the race is used again
	wake  chan struct{} // capacity 1: something happened that Run may wait for; kept as well
	alone func()        // runs a detached primary; kept as well, so that go needs no closure
	fired atomic.Bool   // fire was called
	late  bool          // fire may still be called though Run has returned

	mu          sync.Mutex    // guards the fields below
	over        bool          // Run has its result
	index       int           // of the delay that the timer is set to
	due         time.Duration // after the start, when the timer is to fire
	started     int           // attempts
	unfinished  int           // attempts that have not returned and cleaned up
	abandoned   bool          // the caller has left Run by a panic or runtime.Goexit
	winner      int           // -1: none yet
	notTaken    int           // see Result
	primaryDone bool          // the primary has returned
	holding     holding       // of its failure
	turns       turns         // of hedges, because attempts have failed
	value       T             // the winner's, or else the primary's
	err         error
	attempts    [1 + MaxHedges]attempt
}

type attempt struct {
	*Attempt
	running bool   // has not returned
	ended   func() // to be called when its result has been discarded, see [Losers]; may be nil
}

// Run races op until an attempt succeeds, the primary has an answer, or all have failed. The primary
// starts at once; a hedge starts at each of delays (counted from now, rising)
// at which the call is unanswered and gate admits it, MaxHedges at most. There
// may be more delays than that, for a gate that does not admit all.
//
// If all attempts fail, the primary's value and error are returned as they
// are. A primary that fails while no hedge is out is returned at once, and so
// it is once parent ends; see also [Style].Leave. If hedges are out, it waits for them as long as
// [Bound] says, and not for those that wait for a connection; then they are cancelled. No hedge
// starts once the primary has failed, unless it has failed with a [Turn]. A panic in the primary is raised in the caller's
// goroutine (a detached one's only if no hedge won, as a *Panic unless it is an error
// of its own); a panic in a hedge is a failed attempt.
func (r *Race[T]) Run(parent context.Context, op Op[T], gate Gate, delays []time.Duration) (out Result[T]) {
	r.op, r.gate, r.parent, r.delays = op, gate, parent, delays
	style := &r.Style
	if style.Fresh {
		r.timer, r.wake = nil, nil
	}
	primary := style.Primary
	if primary == nil {
		primary = new(Attempt)
	}
	primary.Context, primary.detached, primary.severs, primary.call = parent, style.Detach, style.Sever, style.Call
	r.winner, r.started, r.unfinished, r.notTaken = -1, 1, 1, 0
	r.attempts[0].Attempt, r.attempts[0].running = primary, true
	if style.Detach && r.wake == nil {
		r.wake = make(chan struct{}, 1)
		r.alone = func() { r.run(r.attempts[0].Attempt, 0) }
	}
	if len(delays) > 0 {
		r.due = delays[0]
		r.arm(r.due)
	}
	if style.Detach {
		go r.alone()
		return r.await()
	}

	returned := false
	defer func() {
		if !returned {
			r.abandon()
			r.sever(-1)
		}
	}()
	if style.Watch != nil {
		style.Watch.Started(primary, 0)
	}
	v, err := r.attempt(primary, 0)
	if len(delays) == 0 || (!isTurn(err) && r.timer.Stop() && !r.fired.Load()) {
		returned = true
		out.Value, out.Err, out.Started, out.Attempt = v, err, 1, primary
		if err != nil {
			out.Winner = -1
		}
		if style.Watch != nil {
			style.Watch.Finished(primary, 0, OutcomeOf(err))
		}
		return out
	}
	r.finish(0, v, err)
	out = r.await()
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
	if r.Style.Fresh {
		r.timer, r.wake = nil, nil
	}
	r.op, r.gate, r.parent, r.delays = nil, nil, nil, nil
	r.Style.clear()
	r.over, r.primaryDone, r.value, r.err = false, false, none, nil // no hedge has started
	r.attempts[0].Attempt, r.attempts[0].running = nil, false
	return true
}

// clear makes s the zero Style, field by field: while the garbage collector marks, that costs a fifth of clearing it as a whole.
func (s *Style[T]) clear() {
	s.Detach, s.Sever, s.SeverHedges, s.Fresh = false, false, false, false
	s.Losers, s.Leave, s.Watch, s.Primary, s.Usual = nil, nil, nil, nil, 0
	s.Call.HTTP, s.Call.Target, s.Call.Method = false, "", ""
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
	if r.turns.stale > 0 {
		r.turns.stale--
		return nil, 0
	}
	if r.over || r.winner >= 0 || r.unfinished == 0 && !r.turns.next || r.primaryDone && !r.turns.open {
		return nil, 0
	}
	if r.turns.next = false; r.primaryDone {
		defer r.notify() // Run waits for this hedge, or returns if there is none
	}
	index, due := r.index, r.due
	if r.index++; r.index < len(r.delays) {
		r.due = r.turns.moved(r.index, r.delays[r.index])
		r.arm(r.due - due)
	} else if p, ok := r.gate.(Pacer); ok {
		defer r.pace(p)
	}
	if r.started > MaxHedges || !r.admit(index) {
		return nil, 0
	}
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	n, a = r.started, &Attempt{Context: r.parent, n: uint8(r.started), detached: r.Style.Detach, severs: r.Style.Sever || r.Style.SeverHedges, call: r.Style.Call}
	r.attempts[n] = attempt{Attempt: a, running: true}
	r.holding.hedged(due)
	r.started++
	r.unfinished++
	return a, n
}

// pace arms the timer as p says. The caller holds mu.
func (r *Race[T]) pace(p Pacer) {
	if wait, again := p.Next(); again {
		r.due += wait
		r.arm(wait)
	}
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
	if w := r.Style.Watch; w != nil {
		w.Started(a, n)
	}
	v, err = r.attempt(a, n)
}

// attempt makes attempt n. An answer that is no success ends the call if it is the primary's,
// and no hedge's does: there is no other place that decides it.
func (r *Race[T]) attempt(a *Attempt, n int) (T, error) {
	v, err := r.op.Attempt(a, n)
	if n == 0 {
		err = OfPrimary(err)
	}
	return v, err
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
//	is open       failed, the primary    is kept, in case every hedge fails as well, or takes too long
//	is open       failed, a hedge        is discarded; it may move the next hedge, see [Turn]
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
	if r.Style.Watch != nil {
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
	r.Style.Watch.Finished(r.attempts[n].Attempt, n, how)
}

// take is the rest of finish. The caller holds mu, which take unlocks.
func (r *Race[T]) take(n int, v T, err error, open bool) {
	if open && err != nil {
		r.turn(n, err)
	}
	switch me := &r.attempts[n]; {
	case open && err == nil:
		v, err = r.win(n, v)
		if n == 0 || !r.primaryDone {
			r.notify()
			r.mu.Unlock()
			return
		}
		op, primary, ended := r.op, r.attempts[0].Attempt, r.lose(0)
		r.notify()
		r.mu.Unlock()
		discard(op, v, err, primary, ended)
	case open && n == 0:
		r.value, r.err = v, err
		r.unfinished--
		r.hold()
		r.notify()
		r.mu.Unlock()
	default:
		if open && err == ErrAnswer {
			r.notTaken++
		}
		r.unfinished-- // before what it returned is discarded: nobody waits for that
		op, a, ended, inCaller := r.op, me.Attempt, r.lose(n), n == 0 && !r.Style.Detach
		r.notify()
		r.mu.Unlock()
		if inCaller {
			go discard(op, v, err, a, ended)
		} else {
			discard(op, v, err, a, ended)
		}
	}
}

// turn moves the next hedge to when the failure of attempt n says, if it is a Turn. The race is open. The caller holds mu.
//
// A failure of the primary that is in hand does not wait for a hedge that is put off for longer than it may be held, nor for one
// that is not to be: then none starts any more.
func (r *Race[T]) turn(n int, err error) {
	t, ok := err.(*Turn)
	if n == 0 {
		r.turns.open, r.turns.next = ok, false
	}
	if ok {
		r.fired.Store(true) // so that the race is not used again
	}
	if ok && r.primaryDone && (t.Hedges == 0 || t.After > max(r.took(n, t), maxBound)) {
		r.turns.open, r.turns.next = false, false
	}
	if !ok || r.primaryDone && !r.turns.open || r.holding.over || r.started > MaxHedges || r.index >= min(t.Hedges, len(r.delays)) {
		return
	}
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	r.due = t.Took + t.After
	r.turns.hedges, r.turns.shift, r.turns.next = t.Hedges, r.due-r.delays[r.index], true
	if !r.timer.Reset(t.After) {
		r.turns.stale++
	}
}

// took returns how long the primary took, which has failed, when attempt n fails with t. The caller holds mu.
func (r *Race[T]) took(n int, t *Turn) time.Duration {
	if n == 0 {
		return t.Took
	}
	return r.holding.failed.Sub(r.holding.began)
}

// idle reports whether no attempt is out, but one is to start. The caller holds mu.
func (r *Race[T]) idle() bool { return r.unfinished == 0 && r.turns.next }

// lose ends attempt n, which has lost, as [Losers] decides. It returns the function to be called when the result has been
// discarded; nil: there is none. The caller holds mu.
func (r *Race[T]) lose(n int) (ended func()) {
	me := &r.attempts[n]
	switch losers := r.Style.Losers; {
	case me.ended != nil:
	case losers == nil:
		if me.running {
			me.Cancel()
		}
	default:
		if me.ended = losers.Lost(me.Attempt, n, me.running); me.ended != nil {
			me.detach()
		}
	}
	return me.ended
}

// discard releases what a loser or a failed attempt returned, and the attempt with it.
func discard[T any](op Op[T], v T, err error, a *Attempt, ended func()) {
	defer func() {
		_ = recover() // of what belongs to nobody any more: it must not end the process
		a.Release()
		if ended != nil {
			ended()
		}
	}()
	op.Discard(v, err)
}

// win makes attempt n, which returned v, the winner. It returns what the primary has
// returned if that has failed. The caller holds mu.
func (r *Race[T]) win(n int, v T) (T, error) {
	kept, err := r.value, r.err
	r.winner, r.value, r.err = n, v, nil
	r.turns.next = false
	r.unfinished--
	for i := range r.attempts {
		if r.attempts[i].running {
			r.lose(i)
		}
	}
	return kept, err
}

// hold begins to hold the failure of the primary if hedges are out. The caller holds mu.
func (r *Race[T]) hold() {
	if r.unfinished == 0 && !r.turns.next || r.Style.Usual == Unbounded {
		return
	}
	r.holding.failed = time.Now()
	losers := r.Style.Losers
	if losers == nil {
		return
	}
	for i := range r.attempts {
		if me := &r.attempts[i]; me.running && losers.IsQueued(me.Attempt) {
			me.Cancel()
		}
	}
	wait := false
	if r.value, wait = losers.Failed(r.attempts[0].Attempt, r.value, r.err, r.release); !wait {
		r.giveUp()
	}
}

// release returns the failure of the primary that is held.
func (r *Race[T]) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveUp()
	r.notify()
}

// giveUp ends the wait for hedges. The caller holds mu.
func (r *Race[T]) giveUp() {
	if !r.over && r.winner < 0 && !r.holding.over {
		r.holding.over, r.turns.next = true, false
		r.cancelRunning()
	}
}

// bound returns the timer of a failure that is held while hedges are out; nil if none is. The caller holds mu.
func (r *Race[T]) bound() *time.Timer {
	if r.holding.failed.IsZero() || r.winner >= 0 || r.holding.over || r.idle() {
		return nil
	}
	return time.NewTimer(time.Until(r.holding.end(r.Style.Usual)))
}

// cancelRunning cancels the attempts that run. The caller holds mu.
func (r *Race[T]) cancelRunning() {
	for i := range r.attempts {
		if me := &r.attempts[i]; me.running {
			me.Cancel()
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
	done, left, stays := r.parent.Done(), false, r.Style.Leave == nil
	var bound *time.Timer
	r.mu.Lock()
	for !r.settled() && !left {
		ended := done
		if !r.primaryDone && stays {
			ended = nil // the primary knows that the caller is gone, and will say it in its own words
		}
		if bound == nil {
			if bound = r.bound(); bound != nil {
				defer bound.Stop()
			}
		}
		r.mu.Unlock()
		gone, late := r.sleep(ended, bound)
		r.mu.Lock()
		switch {
		case r.settled():
		case late && (r.idle() || time.Now().Before(r.holding.end(r.Style.Usual))):
			bound = nil // another hedge is to start, or has started
		case late:
			r.giveUp()
		case !gone:
		case r.primaryDone:
			left = true // the hedges that are out end with the caller's context as well
		default:
			left = r.Style.Leave()
			stays = !left
		}
	}
	return r.end()
}

// sleep waits until something happens, the caller's context ends, or the bound is reached.
func (r *Race[T]) sleep(ended <-chan struct{}, bound *time.Timer) (gone, late bool) {
	if ended == nil && bound == nil {
		<-r.wake // cheaper than a select
		return false, false
	}
	var reached <-chan time.Time
	if bound != nil {
		reached = bound.C
	}
	select {
	case <-r.wake:
	case <-ended:
		gone = true
	case <-reached:
		late = true
	}
	return gone, late
}

// end ends the race, and returns or raises its outcome. The caller holds mu, which end unlocks.
func (r *Race[T]) end() Result[T] {
	r.over = true
	out := Result[T]{Value: r.value, Err: r.err, Winner: r.winner, Started: r.started, NotTaken: r.notTaken}
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
	r.sever(max(out.Winner, 0))
	if p, ok := out.Err.(*Panic); ok {
		out.Attempt.Release() // the caller gets no result to release it by
		p.Raise()
	}
	return out
}

// sever cuts all attempts but the one whose number is given off the caller's context: those that
// run on, and those whose answers are discarded. The race is over.
func (r *Race[T]) sever(but int) {
	if !r.Style.Sever && !r.Style.SeverHedges {
		return
	}
	var others [1 + MaxHedges]*Attempt
	r.mu.Lock()
	for n := range r.started {
		others[n] = r.attempts[n].Attempt
	}
	r.mu.Unlock()
	var all []known
	for _, a := range others[1:] {
		if a != nil {
			all = append(all, a.knows()...)
		}
	}
	for n, a := range others { // without the lock: it waits for a context that is not ours
		switch {
		case a == nil || n == but:
		case a.severs:
			a.sever(all)
		default:
			a.Release() // what it returned is discarded in another goroutine, which releases it as well
		}
	}
}

// settled reports whether Run can return. The caller holds mu.
func (r *Race[T]) settled() bool {
	switch {
	case r.winner >= 0:
		return r.primaryDone || r.Style.Detach
	default:
		return r.primaryDone && (r.unfinished == 0 && !r.turns.next || r.holding.over)
	}
}

// Won reports whether v is equal (==) to the value of the winner. A value of a type that cannot be compared is not. Call it in
// Discard: a loser may have returned the same value as the winner, as calls of a cache do. After the caller has left by a panic there is no winner.
func (r *Race[T]) Won(v T) bool {
	r.mu.Lock()
	won, value := r.winner >= 0 && !r.abandoned, r.value
	r.mu.Unlock()
	return won && equal(v, value)
}

// equal reports whether v == w. It is false if their type cannot be compared.
func equal(v, w any) (same bool) {
	defer func() { _ = recover() }() // a runtime error, if the type cannot be compared
	return v == w
}

// abandon ends the race when the caller leaves Run by a panic or runtime.Goexit.
func (r *Race[T]) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns.next = false
	r.over, r.late, r.abandoned = true, true, true
	r.cancelRunning()
	if r.winner >= 0 || r.primaryDone {
		n := max(r.winner, 0)
		go discard(r.op, r.value, r.err, r.attempts[n].Attempt, r.lose(n))
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	if w := r.Style.Watch; w != nil && !r.primaryDone {
		w.Finished(r.attempts[0].Attempt, 0, Failed)
	}
}
