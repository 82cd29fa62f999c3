// Package race runs an operation as a primary attempt and, if that is slow,
// as concurrent hedges, and keeps the first success.
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

// MaxHedges is the maximum number of hedges in a race.
const MaxHedges = 4

// An Op is the operation that a [Race] runs. Its methods are called from several goroutines.
type Op[T any] interface {
	// Attempt makes attempt n and returns its result; attempt 0 is the primary. A nil error means success, and the first success wins. The
	// error [ErrAnswer] means success for the primary, and failure for a hedge. After any other error, v is used only if n is 0 and every
	// attempt fails. Attempt must return soon after a is done.
	Attempt(a *Attempt, n int) (v T, err error)

	// Discard releases the result of an attempt that Run does not return. It is called once for each attempt except the one that Run
	// returns, and never in the goroutine that called Run. It may be called after Run has returned. The error is a *Panic if the attempt
	// panicked or ended its goroutine.
	Discard(v T, err error)

	// Admit reports whether the hedge of the given index of the [Schedule] may start. It is called with the race locked and must not block.
	// A hedge does not start if Admit panics or ends its goroutine.
	Admit(index int) bool

	// Ended is called once for each admitted hedge, with the number n of its attempt, after Attempt has returned.
	Ended(n int)
}

// An Outcome says how an attempt ended.
type Outcome int

// The outcomes.
const (
	Won    Outcome = iota
	Lost           // another attempt had won before, or the hedge was not sent, or the server refused it
	Failed         // the attempt failed, or the caller canceled the call
)

// String returns the corresponding Outcome of package observe.
func (o Outcome) String() string { return [...]string{Won: "won", Lost: "lost", Failed: "failed"}[o] }

// An AttemptObserver is notified of the start and the end of every attempt, in the goroutine of the attempt. A loser may end after Run has
// returned. AttemptEnded may be called with the race locked, so it must not block. The methods may end the goroutine by runtime.Goexit, but
// must not panic.
type AttemptObserver interface {
	AttemptStarted(ctx context.Context, n int)
	AttemptEnded(ctx context.Context, n int, how Outcome)
}

// A Detachment selects the attempts that stop using the caller's context when Run returns.
type Detachment uint8

// The detachments. DetachHedges suffices if the primary does not use its context after it has returned.
const (
	DetachNone Detachment = iota
	DetachHedges
	DetachAll
)

// A Style holds the settings of a race. The zero Style runs the primary in the caller's goroutine, cancels losers and does not wait for
// hedges.
type Style[T any] struct {
	// Async runs the primary in a goroutine of its own, so that Run can return before the primary does.
	Async bool
	// Detach selects the attempts that stop using the caller's context when Run returns. After that, they only find the values of that
	// context that were looked up through a hedge before.
	Detach Detachment
	// LoserPolicy decides how losers of an asynchronous race end. If it is nil, they are cancelled at once.
	LoserPolicy LoserPolicy[T]
	// TryAbandon is called, with the race locked, when the caller's context ends before the primary of an asynchronous race has returned.
	// If it reports true, Run returns the context's error at once, and discards the results of attempts when they end. If it reports false
	// or is nil, Run waits for the primary.
	TryAbandon func() bool
	// Observer is notified of every attempt. It may be nil.
	Observer AttemptObserver
	// Primary is memory for the [Attempt] of the primary, which must be zero except for Call. It must not be used for another race. If it
	// is nil, Run allocates an Attempt.
	Primary *Attempt
	// FreshTimer makes a new timer and a new channel for this run. A race in a bubble of testing/synctest needs them, because timers and
	// channels belong to their bubble.
	FreshTimer bool
}

// A Result is the result of a race.
type Result[T any] struct {
	Value           T
	Err             error    // error of the primary, if every attempt failed
	Winner          int      // number of the attempt that returned Value; -1 if all attempts failed
	Started         int      // number of started attempts, including the primary
	AnswersNotTaken int      // number of hedges that returned ErrAnswer before an attempt won
	Attempt         *Attempt // attempt that returned Value or Err; see [Attempt.NeedsRelease]; nil if the primary was abandoned
}

// A Panic is the error of an attempt that panicked or called runtime.Goexit.
type Panic struct {
	Value any    // nil if the attempt called runtime.Goexit
	Stack []byte // stack trace of the panic
}

func (p *Panic) Error() string {
	return fmt.Sprintf("hedge: attempt panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the value of the panic if it is an error; otherwise nil.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Rethrow panics in the goroutine of the caller, or ends it if the attempt called runtime.Goexit. It panics with p, whose text has the
// stack trace of the attempt. An error other than a [runtime.Error] is not wrapped in p, because recovering callers compare it, for example
// with [http.ErrAbortHandler].
func (p *Panic) Rethrow() {
	if p.Value == nil {
		runtime.Goexit()
	}
	if _, ok := p.Value.(runtime.Error); !ok && p.Unwrap() != nil {
		panic(p.Value)
	}
	panic(p)
}

// RecoverPanic returns the error of f, or a *Panic if f panics. It serves goroutines whose panics another goroutine rethrows.
func RecoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// A Race runs one operation at a time. The zero value is ready. After Run, it can be used again if Reset reports true. It must not be
// copied.
type Race[T any] struct {
	op       Op[T]
	schedule Schedule

	// Style is set before Run, field by field, because copying a struct that was just written stalls the processor. Reset clears it.
	Style Style[T]

	timer       *time.Timer   // calls onTimer; Reset keeps it
	wake        chan struct{} // wakes Run; its capacity is 1; Reset keeps it
	runPrimary  func()        // runs an asynchronous primary; Reset keeps it, to save the allocation of a closure
	notReusable atomic.Bool   // the race must not be used again, because onTimer was called or may still be called

	mu          sync.Mutex // guards the fields below
	phase       phase
	armed       bool          // the timer is set for a hedge; false: no further hedge starts
	due         time.Duration // time from the start of the race to that hedge
	primaryDone bool          // the primary has returned
	winner      int           // number of the winner; -1: no attempt has won yet
	value       T             // value of the winner; without a winner, that of the primary
	err         error         // of the failed primary
	hedges      *hedgeState   // nil: no hedge was due yet
}

// A phase is the progress of a race.
type phase uint8

const (
	racing    phase = iota
	finished        // Run has its result
	abandoned       // the caller has left Run by a panic or runtime.Goexit
)

// A hedgeState is the part of the state of a race that exists after a hedge was due. The race's mu guards it.
type hedgeState struct {
	attempts        [1 + MaxHedges]attempt // 0 is the primary
	started         int                    // number of started attempts, including the primary
	index           int                    // index in the schedule of the hedge that the timer is set for
	isDue           bool                   // the next hedge starts even if the primary has failed
	staleFires      int                    // number of calls of onTimer to ignore, because the time of the hedge has changed
	answersNotTaken int                    // see Result
	hold            failureHold            // time for which the failure of the primary is held
}

type attempt struct {
	*Attempt
	running bool   // the attempt has not returned; not used for the primary, see [Race].primaryDone
	ended   func() // is called after the result was discarded, see [LoserPolicy]; may be nil
}

// Run races op until an attempt succeeds or all attempts have failed. The primary starts at once. Hedges start at the times of the
// schedule, if op admits them, until an attempt succeeds. At most [MaxHedges] hedges start.
//
// If all attempts fail, Run returns the value and the error of the primary. A primary that fails while no hedge runs ends the race at once,
// unless the schedule moves the next hedge, see [Reschedule].
//
// If hedges run when the primary fails, Run holds the failure until the hedges have failed as well, or the time of [Schedule].HedgeTimeout
// has passed. Then it cancels the hedges and returns the failure. If parent ends in the meantime, Run returns the failure at once. If
// parent ends while the primary runs, see [Style].TryAbandon.
//
// Run rethrows a panic of the primary by [Panic.Rethrow]. In an asynchronous race, it does so only if no hedge has won. A panic of a hedge
// is a failure of that attempt.
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

// Reset prepares the race for another Run and reports true. It reports false if the race must not be used again, because its timer or an
// attempt may still refer to it. It may be called once after Run.
func (r *Race[T]) Reset() bool {
	if r.notReusable.Load() {
		return false
	}
	if r.Style.FreshTimer {
		r.timer, r.wake = nil, nil
	}
	r.op, r.schedule = nil, nil
	s := &r.Style // cleared field by field: during garbage collection, that takes a fifth of the time
	s.Async, s.FreshTimer, s.Detach = false, false, DetachNone
	s.LoserPolicy, s.TryAbandon, s.Observer, s.Primary = nil, nil, nil, nil
	r.phase, r.primaryDone, r.value, r.err, r.hedges = racing, false, *new(T), nil, nil
	return true
}

// armNext sets the timer for the hedge with the given index, and reports whether the schedule has such a hedge. The caller holds mu, except
// at the start of the race.
func (r *Race[T]) armNext(index int) bool {
	wait, ok := r.schedule.Next(index)
	if r.armed = ok; !ok {
		return false
	}
	r.due += wait
	if r.timer == nil {
		r.timer = time.AfterFunc(math.MaxInt64, r.onTimer) // started by Reset below, because onTimer reads r.timer
	}
	r.timer.Reset(wait)
	return true
}

// disarm stops the timer, so that no further hedge starts. The caller holds mu.
func (r *Race[T]) disarm() {
	if r.armed && !r.timer.Stop() {
		r.notReusable.Store(true)
	}
	r.armed = false
	if r.hedges != nil {
		r.hedges.isDue = false
	}
}

// onTimer starts the hedge that is due. The timer calls it.
func (r *Race[T]) onTimer() {
	r.notReusable.Store(true)
	if a, n := r.nextDueHedge(); a != nil {
		r.runAttempt(a, n)
	}
}

// nextDueHedge creates the attempt of the hedge that is due, and returns it with its number. It also sets the timer for the next hedge. It
// returns nil if the hedge must not start.
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
		defer r.wakeRun() // Run waits for this hedge, and must return if the hedge does not start
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

// initHedges returns the state of the hedges, and creates it at the first call. The caller holds mu.
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

// startedCount returns the number of started attempts, including the primary. The caller holds mu.
func (r *Race[T]) startedCount() int {
	if r.hedges == nil {
		return 1
	}
	return r.hedges.started
}

// attemptAt returns attempt n, and whether it is still running. The caller holds mu.
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

// admitHedge returns the result of Admit; false if Admit panics. The goroutine of the timer has no caller to which the panic could be
// rethrown.
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

// runAttempt runs attempt n in the current goroutine, and settles its result.
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

// OutcomeOf returns the outcome of an attempt that ended with err before any attempt won.
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
//	is open       succeeded              wins; the kept result of a failed primary is discarded
//	is open       failed, the primary    is kept, in case every hedge fails or takes too long
//	is open       failed, a hedge        is discarded; the next hedge may be rescheduled, see [Reschedule]
//	has a winner  any                    is discarded
//	is over       any                    is discarded
//
// A race is open while Run waits and no attempt has won.
func (r *Race[T]) finishAttempt(n int, v T, err error) {
	r.mu.Lock()
	a, _ := r.attemptAt(n)
	if n == 0 {
		r.primaryDone = true
	} else {
		r.hedges.attempts[n].running = false
	}
	open := r.phase == racing && r.winner < 0
	defer r.settleResult(n, v, err, open) // also if the observer ends the goroutine
	if w := r.Style.Observer; w != nil {  // before Run can return, because the observer may be used for another race then
		how := OutcomeOf(err)
		if !open && (err == nil || r.winner >= 0) {
			how = Lost
		}
		w.AttemptEnded(a, n, how)
	}
}

// settleResult keeps or discards the result of attempt n, according to the table of finishAttempt. The caller holds mu, and settleResult
// unlocks it.
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

// reschedule lets the schedule change the time of the next hedge after the failure of attempt n. The race is open. The caller holds mu.
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

// hasScheduledHedge reports whether no attempt is running but another hedge will start. The caller holds mu.
func (r *Race[T]) hasScheduledHedge() bool { return r.hedges != nil && r.hedges.isDue && r.isIdle() }

// endLoser cancels attempt n, which has lost, or ends it as the [LoserPolicy] decides. It returns the attempt and the function to call
// after the result was discarded, which may be nil. The caller holds mu.
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

// setWinner makes attempt n, which returned v, the winner, and ends the running attempts. It returns the kept result of a failed primary,
// which is to be discarded. The caller holds mu.
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

// holdFailure begins to hold the failure of the primary, if hedges run or are due. The caller holds mu.
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

// releaseFailure stops holding the failure of the primary, so that Run returns it.
func (r *Race[T]) releaseFailure() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopHolding()
	r.wakeRun()
}

// stopHolding stops holding the failure of the primary, and cancels the running hedges. The caller holds mu.
func (r *Race[T]) stopHolding() {
	if r.phase == racing && r.winner < 0 && !r.hedges.hold.ended {
		r.hedges.hold.ended = true
		r.disarm()
		r.cancelRunning()
	}
}

// holdTimer returns a timer for the end of the time for which a failure is held; nil if no failure is held. The caller holds mu.
func (r *Race[T]) holdTimer() *time.Timer {
	h := r.hedges
	if h == nil || h.hold.failed.IsZero() || r.winner >= 0 || h.hold.ended || r.hasScheduledHedge() {
		return nil
	}
	return time.NewTimer(time.Until(h.hold.holdUntil(r.schedule)))
}

// cancelRunning cancels all running attempts. The caller holds mu.
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

// awaitResult waits until the race is settled, and returns its result. The primary has returned, or runs in a goroutine of its own.
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
			hold = nil // another hedge has started or will start, so the failure is held longer
		case late:
			r.stopHolding()
		case !gone:
		case r.primaryDone:
			left = true // running hedges end with the caller's context as well
		default:
			left = r.Style.TryAbandon()
			stays = !left
		}
	}
	return r.endRace()
}

// waitForWake waits until wakeRun is called, the channel ended is closed (gone), or the timer hold expires (late).
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

// endRace ends the race, and returns its result or rethrows the panic of the primary. The caller holds mu, and endRace unlocks it.
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
		out.Attempt.Release() // the caller gets no Result, so it cannot release the attempt
		p.Rethrow()
	}
	return out
}

// detachAllBut detaches all attempts except attempt n from the caller's context, as [Style].Detach says. The race is over.
func (r *Race[T]) detachAllBut(n int) {
	if r.Style.Detach == DetachNone {
		return
	}
	r.mu.Lock()
	attempts := [1 + MaxHedges]attempt{{Attempt: r.Style.Primary}}
	if r.hedges != nil {
		attempts = r.hedges.attempts // no further hedge starts
	}
	r.mu.Unlock()
	var all []contextValue
	for _, a := range attempts[1:] {
		if a.Attempt != nil {
			all = append(all, a.recordedValues()...)
		}
	}
	for i, a := range attempts { // without the lock, because detach waits for uses of the caller's context
		switch {
		case i == n || a.Attempt == nil:
		case a.detaches:
			a.detach(all)
		default:
			a.Release() // its result is discarded in another goroutine, which releases it as well
		}
	}
}

// isSettled reports whether the result of the race is final, so that Run can return. The caller holds mu.
func (r *Race[T]) isSettled() bool {
	if r.winner >= 0 {
		return r.primaryDone || r.Style.Async
	}
	h := r.hedges
	return r.primaryDone && (h == nil || h.hold.ended || r.isIdle() && !h.isDue)
}

// Winner returns the value of the winner. It reports false if no attempt has won, or the caller has left Run by a panic. Discard may call
// it to find out whether a loser returned the same value as the winner.
func (r *Race[T]) Winner() (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.winner >= 0 && r.phase != abandoned
}

// abandonRace ends the race after the caller has left Run by a panic or runtime.Goexit. It cancels the attempts and discards their results.
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
