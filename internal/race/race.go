// Package race runs an operation as a primary attempt and, if that is slow,
// as hedges beside it, and keeps the first success.
//
// It decides which attempt wins, and cancels or discards the others. A [Schedule] says when a hedge is due, and the [Op]
// whether it may start. As in dialParallel of package net, an attempt that ends after the race releases its own result.
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

	// Discard releases the result of an attempt that Run does not return. It is called
	// once for each attempt but the one that Run returns, never in the goroutine
	// that called Run, and maybe after Run has returned. The error is a *Panic if
	// the attempt did not return.
	Discard(v T, err error)

	// Admit reports whether the hedge of the given index of the [Schedule] may start.
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

// An AttemptObserver observes every attempt. The goroutine of the attempt calls it. It must not
// block: Finished may be called with the race locked. A loser may finish after
// Run has returned. An AttemptObserver may end the goroutine by runtime.Goexit, but must not panic.
type AttemptObserver interface {
	AttemptStarted(ctx context.Context, n int)
	AttemptEnded(ctx context.Context, n int, how Outcome)
}

// A Detachment says which attempts stop using the caller's context when Run returns.
type Detachment uint8

// The detachments. DetachHedges is enough if the primary uses nothing of the caller once it has returned.
const (
	DetachNone Detachment = iota
	DetachHedges
	DetachAll
)

// Style is how the attempts of a race run and end. The zero Style runs the
// primary in the caller's goroutine, cancels losers and does not wait for hedges.
type Style[T any] struct {
	// Async runs the primary in a goroutine of its own, so that Run can return without it when a hedge wins.
	Async bool
	// Detach is for attempts that still run when Run returns. A detached attempt finds the values of the caller's context that
	// hedges have been asked for before, and no others.
	Detach Detachment
	// LoserPolicy decides how losers of an asynchronous race end; nil: they are cancelled at once.
	LoserPolicy LoserPolicy[T]
	// TryAbandon is called, with the race locked, when the caller's context ends and the primary of an asynchronous race has not
	// returned. If it reports true, Run returns with the context's error at once, and the results of the attempts are discarded
	// when they end. Otherwise, or if TryAbandon is nil, Run waits for the primary.
	TryAbandon func() bool
	// Observer observes every attempt; nil: there is none.
	Observer AttemptObserver
	// Primary is the Attempt of the primary, zero but for Call and in memory of the adapter; nil: a new one. It is not used
	// again, also after the race.
	Primary *Attempt
	// FreshTimer makes a timer and a channel for this run alone. A bubble of testing/synctest needs that: timers
	// and channels of other bubbles do not work there, and its own do not work outside.
	FreshTimer bool
}

// A Result is how a race ended.
type Result[T any] struct {
	Value           T
	Err             error    // the primary's, if every attempt failed
	Winner          int      // the attempt that gave Value; -1 if all failed
	Started         int      // attempts started, the primary included
	AnswersNotTaken int      // hedges that came with ErrAnswer while the race was open
	Attempt         *Attempt // of Value; release it if it holds its caller's context; nil if the caller left it behind
}

// A Panic is the error of an attempt that panicked, or left its goroutine.
type Panic struct {
	Value any    // nil if the attempt called runtime.Goexit
	Stack []byte // of the panic
}

func (p *Panic) Error() string {
	return fmt.Sprintf("hedge: attempt panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the value of the panic if it is an error; otherwise nil.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Rethrow panics in the caller's goroutine. The stack of the attempt is lost there, so it is in the text. An error that the
// runtime did not make is not wrapped: callers that recover compare it, as with [http.ErrAbortHandler].
func (p *Panic) Rethrow() {
	if p.Value == nil {
		runtime.Goexit()
	}
	if _, ok := p.Value.(runtime.Error); !ok && p.Unwrap() != nil {
		panic(p.Value)
	}
	panic(p)
}

// RecoverPanic returns the error of f, or a *Panic if f panics: for a goroutine whose owner calls Rethrow.
func RecoverPanic(f func() error) (err error) {
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
	op       Op[T]
	schedule Schedule

	// Style is set before Run, in place: a copy of a struct that has just been written makes the processor wait. Reset clears it.
	Style Style[T]

	timer       *time.Timer   // calls fire; kept when the race is used again
	wake        chan struct{} // capacity 1: something happened that Run may wait for; kept as well
	runPrimary  func()        // runs an asynchronous primary; kept as well, so that go needs no closure
	notReusable atomic.Bool   // fire was called, or may still be called after Run has returned: the race is not used again

	mu          sync.Mutex // guards the fields below
	phase       phase
	armed       bool          // the timer is set for a hedge; false: no hedge starts any more
	due         time.Duration // when that hedge is due, after the start
	primaryDone bool          // the primary has returned
	winner      int           // -1: none yet
	value       T             // the winner's, or else the primary's
	err         error
	hedges      *hedgeState // nil: no hedge was due yet
}

// A phase is how far a race is.
type phase uint8

const (
	racing    phase = iota
	finished        // Run has its result
	abandoned       // the caller has left Run by a panic or runtime.Goexit
)

// A hedgeState is the part of a race that is needed once a hedge was due. The race's mu guards it.
type hedgeState struct {
	attempts        [1 + MaxHedges]attempt // 0 is the primary
	started         int                    // attempts, the primary included
	index           int                    // of the hedge that the timer is set for
	isDue           bool                   // a hedge is to start though the primary has failed
	staleFires      int                    // calls of fire for a time that has changed since
	answersNotTaken int                    // see Result
	hold            failureHold            // of the failure of the primary
}

type attempt struct {
	*Attempt
	running bool   // has not returned; not used for the primary, see [Race].primaryDone
	ended   func() // to be called when its result has been discarded, see [LoserPolicy]; may be nil
}

// Run races op until an attempt succeeds, the primary has an answer, or all have failed. The primary
// starts at once. A hedge starts when the schedule says, if no attempt has succeeded and op admits it, [MaxHedges] at
// most.
//
// If all attempts fail, the primary's value and error are returned as they are. A primary that fails while no hedge runs is
// returned at once, unless the schedule has one start. It is also returned when parent ends, see [Style].TryAbandon.
//
// If hedges run when the primary fails, its failure is held until they have failed as well, for as long as
// [Schedule].HedgeTimeout allows. Then they are cancelled.
//
// A panic in the primary is raised in the caller's goroutine (a detached one's only if no hedge won, as a *Panic unless it
// is an error of its own). A panic in a hedge is a failed attempt.
func (r *Race[T]) Run(parent context.Context, op Op[T], schedule Schedule) (out Result[T]) {
	r.op, r.schedule = op, schedule
	style := &r.Style
	if style.FreshTimer {
		r.timer, r.wake = nil, nil
	}
	primary := style.Primary
	if primary == nil {
		primary = new(Attempt)
		style.Primary = primary
	}
	primary.Context, primary.async, primary.detaches = parent, style.Async, style.Detach == DetachAll
	r.winner, r.due = -1, 0
	if style.Async && r.wake == nil {
		r.wake = make(chan struct{}, 1)
		r.runPrimary = func() { r.runAttempt(r.Style.Primary, 0) }
	}
	hedgeable := r.armNext(0)
	if style.Async {
		go r.runPrimary()
		return r.awaitResult()
	}

	returned := false
	defer func() {
		if !returned {
			r.abandonRace()
			r.detachAllBut(-1)
		}
	}()
	if style.Observer != nil {
		style.Observer.AttemptStarted(primary, 0)
	}
	v, err := op.Attempt(primary, 0)
	err = PrimaryError(err)
	if !hedgeable || err == nil && r.timer.Stop() && !r.notReusable.Load() {
		returned = true
		out.Value, out.Err, out.Started, out.Attempt = v, err, 1, primary
		if err != nil {
			out.Winner = -1
		}
		if style.Observer != nil {
			style.Observer.AttemptEnded(primary, 0, OutcomeOf(err))
		}
		return out
	}
	r.finishAttempt(0, v, err)
	out = r.awaitResult()
	returned = true
	return out
}

// Reset makes the race ready for another Run and reports true, or reports
// false if something may still refer to it. Call it at most once after Run.
func (r *Race[T]) Reset() bool {
	if r.notReusable.Load() {
		return false
	}
	if r.Style.FreshTimer {
		r.timer, r.wake = nil, nil
	}
	r.op, r.schedule = nil, nil
	s := &r.Style // each field alone: while the garbage collector marks, that costs a fifth of clearing it as a whole
	s.Async, s.FreshTimer, s.Detach = false, false, DetachNone
	s.LoserPolicy, s.TryAbandon, s.Observer, s.Primary = nil, nil, nil, nil
	r.phase, r.primaryDone, r.value, r.err, r.hedges = racing, false, *new(T), nil, nil
	return true
}

// armNext sets the timer for the hedge of the given index, and reports whether the schedule has one. The caller holds mu,
// unless the race begins.
func (r *Race[T]) armNext(index int) bool {
	wait, ok := r.schedule.Next(index)
	if r.armed = ok; !ok {
		return false
	}
	r.due += wait
	if r.timer == nil {
		r.timer = time.AfterFunc(math.MaxInt64, r.onTimer) // not yet wait: fire reads timer
	}
	r.timer.Reset(wait)
	return true
}

// disarm stops the timer: no hedge starts any more. The caller holds mu.
func (r *Race[T]) disarm() {
	if r.armed && !r.timer.Stop() {
		r.notReusable.Store(true)
	}
	r.armed = false
	if r.hedges != nil {
		r.hedges.isDue = false
	}
}

// onTimer is called by the timer when a delay has passed.
func (r *Race[T]) onTimer() {
	r.notReusable.Store(true)
	if a, n := r.nextDueHedge(); a != nil {
		r.runAttempt(a, n)
	}
}

// nextDueHedge arms the timer again, and returns the attempt to make now, if any.
func (r *Race[T]) nextDueHedge() (a *Attempt, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.initHedges()
	if h.staleFires > 0 {
		h.staleFires--
		return nil, 0
	}
	if r.phase != racing || r.winner >= 0 || !r.armed || r.isIdle() && !h.isDue {
		return nil, 0
	}
	if h.isDue = false; r.primaryDone {
		defer r.wakeRun() // Run waits for this hedge, or returns if there is none
	}
	index, due := h.index, r.due
	h.index++
	defer r.armNext(h.index) // also if the operation ends the goroutine
	if h.started > MaxHedges || !r.admitHedge(index) {
		return nil, 0
	}
	primary := r.Style.Primary
	n, a = h.started, &Attempt{Context: primary.Context, Call: primary.Call, n: uint8(h.started), async: r.Style.Async, detaches: r.Style.Detach != DetachNone}
	h.attempts[n] = attempt{Attempt: a, running: true}
	if h.hold.youngest = time.Now(); n == 1 {
		h.hold.began = h.hold.youngest.Add(-due)
	}
	h.started++
	return a, n
}

// initHedges returns the state of the hedges, which begins now if no hedge was due before. The caller holds mu.
func (r *Race[T]) initHedges() *hedgeState {
	if r.hedges == nil {
		r.hedges = &hedgeState{started: 1}
		r.hedges.attempts[0].Attempt = r.Style.Primary
		if r.wake == nil {
			r.wake = make(chan struct{}, 1)
		}
	}
	return r.hedges
}

// startedCount returns how many attempts were started. The caller holds mu.
func (r *Race[T]) startedCount() int {
	if r.hedges == nil {
		return 1
	}
	return r.hedges.started
}

// attemptAt returns attempt n, and whether it has not returned yet. The caller holds mu.
func (r *Race[T]) attemptAt(n int) (a *Attempt, running bool) {
	if n == 0 {
		return r.Style.Primary, !r.primaryDone
	}
	me := &r.hedges.attempts[n]
	return me.Attempt, me.running
}

// isIdle reports whether every attempt has returned. The caller holds mu.
func (r *Race[T]) isIdle() bool {
	for n := range r.startedCount() {
		if _, running := r.attemptAt(n); running {
			return false
		}
	}
	return true
}

// admitHedge reports whether the operation admits the hedge. It reports false if Admit panics: the goroutine of the timer has no
// caller to rethrow the panic to.
func (r *Race[T]) admitHedge(index int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return r.op.Admit(index)
}

// errExited is the error of an attempt that called runtime.Goexit.
var errExited = new(Panic)

// runAttempt makes attempt n in the goroutine it was called in.
func (r *Race[T]) runAttempt(a *Attempt, n int) {
	var (
		v   T
		err error = errExited // unless Attempt returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
		if n > 0 {
			r.op.Ended(n)
		}
		r.finishAttempt(n, v, err)
	}()
	if w := r.Style.Observer; w != nil {
		w.AttemptStarted(a, n)
	}
	if v, err = r.op.Attempt(a, n); n == 0 {
		err = PrimaryError(err)
	}
}

// OutcomeOf returns the outcome of an attempt that returns err while the race is open.
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

// finishAttempt settles the result of attempt n:
//
//	the race      the attempt            the result
//	is open       succeeded              wins; the result of a failed primary is discarded
//	is open       failed, the primary    is kept, in case every hedge fails as well, or takes too long
//	is open       failed, a hedge        is discarded; it may move the next hedge, see [Reschedule]
//	has a winner  any                    is discarded
//	is over       any                    is discarded
//
// Open means that Run waits for a result and has none.
func (r *Race[T]) finishAttempt(n int, v T, err error) {
	r.mu.Lock()
	a, _ := r.attemptAt(n)
	if n == 0 {
		r.primaryDone = true
	} else {
		r.hedges.attempts[n].running = false
	}
	open := r.phase == racing && r.winner < 0
	defer r.settleResult(n, v, err, open) // also if the watch ends the goroutine
	if w := r.Style.Observer; w != nil {  // before Run can return: the watch may be used again then
		how := OutcomeOf(err)
		if !open && (err == nil || r.winner >= 0) {
			how = Lost
		}
		w.AttemptEnded(a, n, how)
	}
}

// settleResult keeps or discards the result of attempt n as the table of finishAttempt says. The caller holds mu, which settleResult unlocks.
func (r *Race[T]) settleResult(n int, v T, err error, open bool) {
	if open && err != nil {
		r.reschedule(n, err)
	}
	loser, inCaller := n, n == 0 && !r.Style.Async
	switch {
	case open && err == nil:
		v, err = r.setWinner(n, v)
		if loser = 0; n == 0 || !r.primaryDone {
			loser = -1
		}
	case open && n == 0:
		r.value, r.err = v, err
		r.holdFailure()
		loser = -1
	case open && err == ErrAnswer:
		r.hedges.answersNotTaken++
	}
	op, a, ended := r.op, (*Attempt)(nil), (func())(nil)
	if loser >= 0 {
		a, ended = r.endLoser(loser)
	}
	r.wakeRun()
	r.mu.Unlock()
	switch {
	case loser < 0:
	case inCaller:
		go discardResult(op, v, err, a, ended)
	default:
		discardResult(op, v, err, a, ended)
	}
}

// reschedule changes the time of the next hedge as the schedule says, because attempt n has failed with err. The race is open.
// The caller holds mu.
func (r *Race[T]) reschedule(n int, err error) {
	next := 0
	if h := r.hedges; h != nil {
		next = h.index
		h.isDue = h.isDue && n > 0
	}
	change := r.schedule.Failed(n, next, err)
	if change.Stop {
		r.disarm()
	}
	if !change.Move || !r.armed || r.startedCount() > MaxHedges {
		return
	}
	r.notReusable.Store(true)
	h := r.initHedges()
	r.due, h.isDue = change.Elapsed+change.After, true
	if !r.timer.Reset(change.After) {
		h.staleFires++
	}
}

// hasScheduledHedge reports whether no attempt runs, but one is to start. The caller holds mu.
func (r *Race[T]) hasScheduledHedge() bool { return r.hedges != nil && r.hedges.isDue && r.isIdle() }

// endLoser ends attempt n, which has lost, as [LoserPolicy] decides. It returns the attempt, and the function to be called when the
// result has been discarded; nil: there is none. The caller holds mu.
func (r *Race[T]) endLoser(n int) (a *Attempt, ended func()) {
	a, running := r.attemptAt(n)
	if r.hedges != nil {
		if ended = r.hedges.attempts[n].ended; ended != nil {
			return a, ended
		}
	}
	switch losers := r.Style.LoserPolicy; {
	case losers != nil:
		if ended = losers.Lost(a, n, running); ended != nil {
			a.ignoreCaller()
		}
	case running:
		a.Cancel()
	}
	if r.hedges != nil {
		r.hedges.attempts[n].ended = ended
	}
	return a, ended
}

// discardResult releases the result of a loser or a failed attempt, and then the attempt.
func discardResult[T any](op Op[T], v T, err error, a *Attempt, ended func()) {
	defer func() {
		_ = recover() // Discard has no caller; its panic must not end the process
		a.Release()
		if ended != nil {
			ended()
		}
	}()
	op.Discard(v, err)
}

// setWinner makes attempt n, which returned v, the winner. It returns the result of the primary
// if that has failed. The caller holds mu.
func (r *Race[T]) setWinner(n int, v T) (T, error) {
	kept, err := r.value, r.err
	r.winner, r.value, r.err = n, v, nil
	if r.hedges != nil {
		r.hedges.isDue = false
	}
	for i := range r.startedCount() {
		if _, running := r.attemptAt(i); running {
			r.endLoser(i)
		}
	}
	return kept, err
}

// holdFailure begins to hold the failure of the primary if hedges run or are due. The caller holds mu.
func (r *Race[T]) holdFailure() {
	if r.isIdle() && !r.hasScheduledHedge() {
		return
	}
	r.hedges.hold.failed = time.Now()
	losers := r.Style.LoserPolicy
	if losers == nil {
		return
	}
	for i := range r.startedCount() {
		if a, running := r.attemptAt(i); running && losers.IsQueued(a) {
			a.Cancel()
		}
	}
	wait := false
	if r.value, wait = losers.Failed(r.Style.Primary, r.value, r.err, r.releaseFailure); !wait {
		r.stopHolding()
	}
}

// releaseFailure returns the failure of the primary that is held.
func (r *Race[T]) releaseFailure() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopHolding()
	r.wakeRun()
}

// stopHolding ends the wait for hedges, which are cancelled. The caller holds mu.
func (r *Race[T]) stopHolding() {
	if r.phase == racing && r.winner < 0 && !r.hedges.hold.ended {
		r.hedges.hold.ended = true
		r.disarm()
		r.cancelRunning()
	}
}

// holdTimer returns the timer of a failure that is held while hedges run; nil if none is held. The caller holds mu.
func (r *Race[T]) holdTimer() *time.Timer {
	h := r.hedges
	if h == nil || h.hold.failed.IsZero() || r.winner >= 0 || h.hold.ended || r.hasScheduledHedge() {
		return nil
	}
	return time.NewTimer(time.Until(h.hold.holdUntil(r.schedule)))
}

// cancelRunning cancels the attempts that run. The caller holds mu.
func (r *Race[T]) cancelRunning() {
	for n := range r.startedCount() {
		if a, running := r.attemptAt(n); running {
			a.Cancel()
		}
	}
}

// wakeRun wakes Run if it waits.
func (r *Race[T]) wakeRun() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// awaitResult waits for the outcome. The primary has returned, or is detached.
func (r *Race[T]) awaitResult() Result[T] {
	done, left, stays := r.Style.Primary.Context.Done(), false, r.Style.TryAbandon == nil
	var hold *time.Timer
	r.mu.Lock()
	for !r.isSettled() && !left {
		ended := done
		if !r.primaryDone && stays {
			ended = nil // the primary observes the end of the context itself, and returns its own error
		}
		if hold == nil {
			if hold = r.holdTimer(); hold != nil {
				defer hold.Stop()
			}
		}
		r.mu.Unlock()
		gone, late := r.waitForWake(ended, hold)
		r.mu.Lock()
		switch {
		case r.isSettled():
		case late && (r.hasScheduledHedge() || time.Now().Before(r.hedges.hold.holdUntil(r.schedule))):
			hold = nil // another hedge is to start, or has started
		case late:
			r.stopHolding()
		case !gone:
		case r.primaryDone:
			left = true // the hedges that are out end with the caller's context as well
		default:
			left = r.Style.TryAbandon()
			stays = !left
		}
	}
	return r.endRace()
}

// waitForWake waits until notify is called, the caller's context ends, or the timer fires.
func (r *Race[T]) waitForWake(ended <-chan struct{}, hold *time.Timer) (gone, late bool) {
	if ended == nil && hold == nil {
		<-r.wake // cheaper than a select
		return false, false
	}
	var reached <-chan time.Time
	if hold != nil {
		reached = hold.C
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

// endRace ends the race, and returns its result or rethrows its panic. The caller holds mu, which endRace unlocks.
func (r *Race[T]) endRace() Result[T] {
	r.phase = finished
	out := Result[T]{Value: r.value, Err: r.err, Winner: r.winner, Started: r.startedCount()}
	if r.hedges != nil {
		out.AnswersNotTaken = r.hedges.answersNotTaken
	}
	if r.winner >= 0 || r.primaryDone {
		out.Attempt, _ = r.attemptAt(max(r.winner, 0))
	} else {
		out.Err = r.Style.Primary.Context.Err()
		r.notReusable.Store(true)
	}
	r.disarm()
	r.mu.Unlock()
	r.detachAllBut(max(out.Winner, 0))
	if p, ok := out.Err.(*Panic); ok {
		out.Attempt.Release() // the caller gets no result to release it by
		p.Rethrow()
	}
	return out
}

// detachAllBut detaches all attempts but attempt n from the caller's context, see [Detachment]. The race is over.
func (r *Race[T]) detachAllBut(n int) {
	if r.Style.Detach == DetachNone {
		return
	}
	r.mu.Lock()
	attempts := [1 + MaxHedges]attempt{{Attempt: r.Style.Primary}}
	if r.hedges != nil {
		attempts = r.hedges.attempts // no more start
	}
	r.mu.Unlock()
	var all []contextValue
	for _, a := range attempts[1:] {
		if a.Attempt != nil {
			all = append(all, a.recordedValues()...)
		}
	}
	for i, a := range attempts { // without the lock: detach waits for a context of the caller
		switch {
		case i == n || a.Attempt == nil:
		case a.detaches:
			a.detach(all)
		default:
			a.Release() // its result is discarded in another goroutine, which releases it as well
		}
	}
}

// isSettled reports whether Run can return. The caller holds mu.
func (r *Race[T]) isSettled() bool {
	if r.winner >= 0 {
		return r.primaryDone || r.Style.Async
	}
	h := r.hedges
	return r.primaryDone && (h == nil || h.hold.ended || r.isIdle() && !h.isDue)
}

// Winner returns the value of the attempt that has won; false: there is none, or the caller has left Run by a panic. Discard
// may call it: a loser may have returned the same value, as calls of a cache do.
func (r *Race[T]) Winner() (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.winner >= 0 && r.phase != abandoned
}

// abandonRace ends the race when the caller leaves Run by a panic or runtime.Goexit.
func (r *Race[T]) abandonRace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = abandoned
	r.notReusable.Store(true)
	r.disarm()
	r.cancelRunning()
	if r.winner >= 0 || r.primaryDone {
		a, ended := r.endLoser(max(r.winner, 0))
		go discardResult(r.op, r.value, r.err, a, ended)
	}
	if w := r.Style.Observer; w != nil && !r.primaryDone {
		w.AttemptEnded(r.Style.Primary, 0, Failed)
	}
}
