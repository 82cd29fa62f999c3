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

// MaxHedges is the maximum number of hedges that a race starts.
const MaxHedges = 4

// An Op is the operation that a [Race] runs, for example one HTTP request. Its methods are called from several goroutines
// concurrently.
type Op[T any] interface {
	// Attempt makes attempt n, where 0 is the primary, and returns its result. It must return soon after the context a is done.
	//
	// A nil error means success, and the first success wins. [ErrAnswer] means success for the primary, and failure for a
	// hedge. After any other error, v is used only if n is 0 and all attempts fail.
	Attempt(a *Attempt, n int) (v T, err error)

	// Discard releases the result of an attempt that Run does not return. It is called once for every other attempt, in a
	// goroutine other than that of Run's caller. It may be called after Run has returned. err is a *Panic if the attempt
	// panicked or called runtime.Goexit.
	Discard(v T, err error)

	// Admit reports whether the hedge with the given index in the [Schedule], or the index [AfterFailure], may start. The race
	// holds its lock during the call, so Admit must not block. The hedge does not start if Admit panics or calls
	// runtime.Goexit.
	Admit(index int) bool

	// Ended is called once for each admitted hedge after its Attempt has returned. The argument n is the number of the attempt.
	Ended(n int)
}

// An Outcome says how an attempt ended.
type Outcome int

// Outcomes of an attempt.
const (
	Won    Outcome = iota // the attempt succeeded, and its result is that of the call
	Lost                  // another attempt had already won, the hedge was not sent, or the server refused it
	Failed                // the attempt failed, or the caller cancelled the call
)

// String returns the name of the outcome in package observe.
func (o Outcome) String() string { return [...]string{Won: "won", Lost: "lost", Failed: "failed"}[o] }

// An AttemptObserver is notified when an attempt starts and ends, in the goroutine of the attempt. The argument n is the
// number of the attempt. A loser may end after Run has returned.
//
// The race may hold its lock when it calls AttemptEnded, so that method must not block. The methods may end the goroutine
// with runtime.Goexit, but must not panic.
type AttemptObserver interface {
	AttemptStarted(ctx context.Context, n int)
	AttemptEnded(ctx context.Context, n int, outcome Outcome)
}

// A DetachMode selects the attempts that must stop using the caller's context when Run returns. The caller can then use that
// context for another call.
type DetachMode uint8

// Values of a DetachMode. DetachHedges is sufficient if the primary does not use its context after it has returned.
const (
	DetachNone   DetachMode = iota // no attempts
	DetachHedges                   // hedges only
	DetachAll                      // the primary and the hedges
)

// A Options holds the settings of a race. With the zero value, the race runs the primary in the caller's goroutine, cancels
// losers at once, and lets all attempts use the caller's context.
type Options[T any] struct {
	// Async runs the primary in a new goroutine, so that Run can return before the primary does.
	Async bool
	// Detach selects the attempts that stop using the caller's context when Run returns. After that, these attempts find only
	// values that a hedge has already looked up.
	Detach DetachMode
	// LoserPolicy decides how losers end. If it is nil, the race cancels them at once.
	LoserPolicy LoserPolicy[T]
	// TryAbandon is called when the caller's context ends before the primary of an asynchronous race has returned. If it
	// returns true, Run returns the error of the context at once, and discards the results of the attempts when they end. If it
	// returns false or is nil, Run waits for the primary.
	//
	// The race holds its lock during the call.
	TryAbandon func() bool
	// Observer is notified of the start and the end of every attempt. It may be nil.
	Observer AttemptObserver
	// Primary is memory for the [Attempt] of the primary. It must be zero except for Call, and must not be used for a second
	// race. If it is nil, Run allocates an Attempt.
	Primary *Attempt
	// FreshTimer makes Run create a new timer and a new channel. It must be set in a bubble of testing/synctest, because timers
	// and channels belong to the bubble in which they were created.
	FreshTimer bool
}

// A Result is the result of a race. It holds the result of the winner, or of the primary if all attempts failed.
type Result[T any] struct {
	Value           T     // result of the winner, or of the primary
	Err             error // error of the primary if all attempts failed; otherwise nil
	Winner          int   // number of the attempt that returned Value; -1 if all attempts failed
	Started         int   // number of attempts that were started, including the primary
	AnswersNotTaken int   // number of hedges that returned ErrAnswer before an attempt won
	// Attempt is the attempt that returned Value or Err. The caller must call [Attempt.Release] if [Attempt.NeedsRelease]
	// returns true. It is nil if Run returned before the primary did.
	Attempt *Attempt
}

// A Panic is the error of an attempt that panicked or called runtime.Goexit.
type Panic struct {
	Value any    // argument of panic; nil if the attempt called runtime.Goexit
	Stack []byte // stack trace of the panic
}

// Error returns the panic value and the stack trace of the panic.
func (p *Panic) Error() string {
	return fmt.Sprintf("hedge: attempt panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the panic value if that is an error, and otherwise nil.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Rethrow panics again in the current goroutine, or calls runtime.Goexit if the attempt did. It panics with p, because the text
// of p has the stack trace of the attempt.
//
// If the panic value is an error but not a [runtime.Error], Rethrow panics with that error instead. Callers that recover may
// compare it, for example with [http.ErrAbortHandler].
func (p *Panic) Rethrow() {
	if p.Value == nil {
		runtime.Goexit()
	}
	if _, ok := p.Value.(runtime.Error); !ok && p.Unwrap() != nil {
		panic(p.Value)
	}
	panic(p)
}

// RecoverPanic calls f and returns its error. If f panics, it returns a *Panic, so that another goroutine can rethrow the
// panic.
func RecoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Panic{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// A Race runs one operation at a time. The zero value is ready for use. After Run, it may be used again if Reset returns true.
// It must not be copied.
type Race[T any] struct {
	op       Op[T]    // operation that Run runs
	schedule Schedule // decides when hedges start

	// Options must be set before Run. Set it field by field: copying a struct that was just written stalls the processor. Reset
	// clears it.
	Style Options[T]

	timer       *time.Timer   // calls onTimer; kept by Reset
	wake        chan struct{} // wakes Run; has capacity 1; kept by Reset
	runPrimary  func()        // runs an asynchronous primary; kept by Reset, because a new closure would be an allocation
	notReusable atomic.Bool   // the race must not be used again, because onTimer was called or may still be called

	mu          sync.Mutex    // guards the fields that follow
	phase       phase         // says whether Run still waits
	armed       bool          // the timer is set for a hedge; false: no more hedges start
	due         time.Duration // time from the start of the race to that hedge
	primaryDone bool          // the primary has returned
	winner      int           // number of the winner; -1: no attempt has won yet
	value       T             // result of the winner; if no attempt has won, result of the primary
	err         error         // error of a failed primary
	hedges      *hedgeState   // state of the hedges; nil: no hedge was due yet
}

// A phase says whether Run is still waiting for a result.
type phase uint8

const (
	racing    phase = iota // Run waits for a result
	finished               // Run has its result
	abandoned              // the caller has left Run by a panic or runtime.Goexit
)

// A hedgeState is the part of the state of a race that is needed only after the first hedge was due. The mu of the race guards
// it.
type hedgeState struct {
	attempts        [1 + MaxHedges]attempt // all attempts by number; 0 is the primary
	started         int                    // number of attempts that were started, including the primary
	index           int                    // index in the schedule of the next hedge
	isDue           bool                   // the next hedge starts even if the primary has failed
	staleFires      int                    // number of calls of onTimer to ignore, because they were started before the hedge was rescheduled
	answersNotTaken int                    // number of hedges that returned ErrAnswer
	failureDelay    failureDelay           // wait for the hedges after the primary has failed
}

// An attempt is the record that a race keeps of one of its attempts.
type attempt struct {
	*Attempt
	running  bool      // the attempt has not returned; not used for the primary, see [Race].primaryDone
	ended    func()    // called after the result was discarded, see [LoserPolicy]; nil: nothing to call
	failover *failover // nil unless a failure has started the attempt
}

// Run makes the attempts of op until an attempt succeeds or all attempts have failed, and returns the result. The primary
// starts at once. Hedges start at the times that the schedule returns, if op admits them. At most [MaxHedges] hedges start.
//
// If all attempts fail, Run returns the value and the error of the primary. If the primary fails while no hedge runs, Run
// returns at once, unless the schedule moves the next hedge, see [Reschedule].
//
// If hedges run when the primary fails, Run waits until all hedges have failed, too, or until the time of
// [Schedule].HedgeTimeout or [Reschedule].Failover has passed. Then it cancels the hedges and returns the failure of the primary. If parent ends
// during this wait, Run returns the failure at once. If parent ends while the primary runs, see [Options].TryAbandon.
//
// If the primary panics, Run panics, too, see [Panic.Rethrow]. In an asynchronous race, it does so only if no hedge has won.
// A panic of a hedge only makes that hedge fail.
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
	hedgeable := r.armTimer(0)
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

// Reset prepares the race for another Run and returns true. It returns false if the race must not be used again, because its
// timer or an attempt may still refer to it. It must be called at most once after each Run.
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

// armTimer sets the timer for the hedge with the given index. It returns false if the schedule has no such hedge. The caller
// must hold mu, except at the start of the race.
func (r *Race[T]) armTimer(index int) bool {
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

// stopTimer stops the timer of the race, so that no more hedges start. The caller must hold mu.
func (r *Race[T]) stopTimer() {
	if r.armed && !r.timer.Stop() {
		r.notReusable.Store(true)
	}
	r.armed = false
	if r.hedges != nil {
		r.hedges.isDue = false
	}
}

// onTimer starts the hedge that is due. It is called by the timer, in a new goroutine.
func (r *Race[T]) onTimer() {
	r.notReusable.Store(true)
	if a, n := r.createDueHedge(); a != nil {
		r.runAttempt(a, n)
	}
}

// createDueHedge creates the attempt of the hedge that is due, and returns it with its number n. It also sets the timer for
// the next hedge. It returns a nil attempt if the hedge must not start, for example because the race is over.
func (r *Race[T]) createDueHedge() (a *Attempt, n int) {
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
	defer r.armTimer(h.index) // also if the operation ends the goroutine
	if h.started > MaxHedges || !r.admitHedge(index) {
		return nil, 0
	}
	return r.addHedge(due, nil)
}

// addHedge creates the attempt of a hedge that starts now, and returns it with its number n. The argument elapsed is the time
// since the start of the race. The argument f is nil for a hedge of the schedule. The caller must hold mu.
func (r *Race[T]) addHedge(elapsed time.Duration, f *failover) (a *Attempt, n int) {
	h, primary := r.hedges, r.Style.Primary
	n, a = h.started, &Attempt{Context: primary.Context, Call: primary.Call, n: uint8(h.started), async: r.Style.Async, detaches: r.Style.Detach != DetachNone}
	h.attempts[n] = attempt{Attempt: a, running: true, failover: f}
	now := time.Now()
	if f == nil {
		h.failureDelay.youngest = now
	}
	if n == 1 {
		h.failureDelay.began = now.Add(-elapsed)
	}
	h.started++
	return a, n
}

// initHedges returns the state of the hedges, which it creates at its first call. The caller must hold mu.
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

// startedCount returns the number of attempts that were started, including the primary. The caller must hold mu.
func (r *Race[T]) startedCount() int {
	if r.hedges == nil {
		return 1
	}
	return r.hedges.started
}

// attemptAt returns attempt n of the race, where 0 is the primary. running is true if the attempt has not returned yet. The
// caller must hold mu.
func (r *Race[T]) attemptAt(n int) (a *Attempt, running bool) {
	if n == 0 {
		return r.Style.Primary, !r.primaryDone
	}
	me := &r.hedges.attempts[n]
	return me.Attempt, me.running
}

// isIdle reports whether all attempts that were started have returned. The caller must hold mu.
func (r *Race[T]) isIdle() bool {
	for n := range r.startedCount() {
		if _, running := r.attemptAt(n); running {
			return false
		}
	}
	return true
}

// admitHedge reports whether op admits the hedge with the given index. It returns false if Op.Admit panics. The panic is not
// rethrown, because the goroutine of the timer has no caller. The caller must hold mu.
func (r *Race[T]) admitHedge(index int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return r.op.Admit(index)
}

// errExited is the error of an attempt that called runtime.Goexit. Its Value is nil.
var errExited = new(Panic)

// runAttempt runs attempt n in the current goroutine and processes its result.
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

// OutcomeOf returns the outcome of an attempt that has ended with err before any other attempt has won.
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

// finishAttempt processes the result v and err of attempt n. What happens to the result depends on the state of the race and
// on the attempt:
//
//	state of race    attempt            result
//	open             succeeded          wins; the kept result of a failed primary is discarded
//	open             primary, failed    is kept, in case every hedge fails or takes too long
//	open             hedge, failed      is discarded; the next hedge may be rescheduled, see [Reschedule]
//	has a winner     any                is discarded
//	over             any                is discarded
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
	defer r.settleResult(n, v, err, open) // also if the observer or op.Admit ends the goroutine
	if open && err != nil {
		defer r.reschedule(n, err)
	}
	if w := r.Style.Observer; w != nil { // before Run can return, because the observer may be used for another race then
		how := OutcomeOf(err)
		if !open && (err == nil || r.winner >= 0) {
			how = Lost
		}
		w.AttemptEnded(a, n, how)
	}
}

// settleResult keeps or discards the result v and err of attempt n, according to the table at finishAttempt. open is true if
// the race was open when the attempt returned. The caller must hold mu, and settleResult unlocks it.
func (r *Race[T]) settleResult(n int, v T, err error, open bool) {
	loser, inCaller := n, n == 0 && !r.Style.Async
	switch {
	case open && err == nil:
		v, err = r.setWinner(n, v)
		if loser = 0; n == 0 || !r.primaryDone {
			loser = -1
		}
	case open && n == 0:
		r.value, r.err = v, err
		r.startFailureDelay()
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

// reschedule lets the schedule change the next hedges after attempt n has failed with err. The race must be open. The caller
// must hold mu.
func (r *Race[T]) reschedule(n int, err error) {
	next := 0
	if h := r.hedges; h != nil {
		next = h.index
		h.isDue = h.isDue && n > 0
	}
	change := r.schedule.Failed(n, next, err)
	if change.Stop {
		r.stopTimer()
	}
	if change.Failover != nil {
		r.startFailover(n, change)
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

// startFailover starts a hedge that is not in the schedule, because attempt n has failed. It does nothing if op does not admit the
// hedge, or if the caller gets the failure of the primary already. After the primary has failed, it starts a hedge only for that failure
// and for failures of the hedges that this has started, one after another. The caller must hold mu.
func (r *Race[T]) startFailover(n int, change Reschedule) {
	h := r.initHedges()
	f := &failover{start: time.Now(), followsPrimary: n == 0 || h.attempts[n].failover.isAfterPrimary()}
	if r.primaryDone && !f.followsPrimary || h.started > MaxHedges || h.failureDelay.ended || !r.admitHedge(AfterFailure) {
		return
	}
	r.notReusable.Store(true)
	f.timeout = change.Failover()
	go r.runAttempt(r.addHedge(change.Elapsed, f))
}

// hasScheduledHedge reports whether the race must continue although all attempts have returned, because another hedge is
// scheduled and will start. The caller must hold mu.
func (r *Race[T]) hasScheduledHedge() bool { return r.hedges != nil && r.hedges.isDue && r.isIdle() }

// endLoser cancels attempt n, which has lost, or lets it finish, as the [LoserPolicy] decides. It returns the attempt, and a
// function to call after the result was discarded, or nil. The caller must hold mu.
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

// discardResult releases the result v and err of a loser or a failed attempt, by calling op.Discard. It then releases the
// attempt a, and calls ended if that is not nil.
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

// setWinner makes attempt n, which returned v, the winner, and ends the running attempts. If a failed primary was kept,
// setWinner returns its result, which the caller must discard. The caller must hold mu.
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

// startFailureDelay is called when the primary has failed. If hedges run or are due, it delays the failure, so that Run
// waits for them. The LoserPolicy can end the delay at once, for example because the response of the primary cannot be kept
// so long. The caller must hold mu.
func (r *Race[T]) startFailureDelay() {
	if r.isIdle() && !r.hasScheduledHedge() {
		return
	}
	r.hedges.failureDelay.failed = time.Now()
	losers := r.Style.LoserPolicy
	if losers == nil {
		return
	}
	for i := range r.startedCount() {
		if a, running := r.attemptAt(i); running && !r.hedges.attempts[i].failover.isAfterPrimary() && losers.IsQueued(a) {
			a.Cancel()
		}
	}
	wait := false
	if r.value, wait = losers.Failed(r.Style.Primary, r.value, r.err, r.releaseFailure); !wait {
		r.endFailureDelay()
	}
}

// releaseFailure ends the delay after a failed primary, so that Run returns the failure without waiting for the hedges. The
// LoserPolicy calls it.
func (r *Race[T]) releaseFailure() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endFailureDelay()
	r.wakeRun()
}

// endFailureDelay ends the delay after a failed primary, and cancels the running hedges. It does nothing if the race already
// has a result. The caller must hold mu.
func (r *Race[T]) endFailureDelay() {
	if r.phase == racing && r.winner < 0 && !r.hedges.failureDelay.ended {
		r.hedges.failureDelay.ended = true
		r.stopTimer()
		r.cancelRunning()
	}
}

// failureDeadline returns the time at which the delay after a failed primary must end. It returns the zero time if Run does
// not wait for hedges after a failure. The caller must hold mu.
func (r *Race[T]) failureDeadline() time.Time {
	h := r.hedges
	if h == nil || h.failureDelay.failed.IsZero() || r.winner >= 0 || h.failureDelay.ended || r.hasScheduledHedge() {
		return time.Time{}
	}
	return h.waitDeadline(r.schedule)
}

// waitDeadline returns the time at which Run stops waiting for hedges after the primary has failed. At least one hedge must run.
// While hedges of the schedule s run, it is the time until which s lets the youngest of them run.
//
// A failover that is younger, or that runs alone, may run until the end of its own timeout. However many failovers start, the wait
// for them ends at most [MaxFailureDelay], or as long as the primary took, after the failure of the primary.
func (h *hedgeState) waitDeadline(s Schedule) (deadline time.Time) {
	w := &h.failureDelay
	took := w.failed.Sub(w.began)
	timeout := s.HedgeTimeout(took)
	for n := h.started - 1; n > 0; n-- {
		switch hedge := &h.attempts[n]; {
		case !hedge.running:
		case hedge.failover == nil:
			return later(deadline, w.youngest.Add(timeout))
		case deadline.IsZero():
			deadline = hedge.failover.waitDeadline(w.failed, took, timeout)
		}
	}
	return deadline
}

// cancelRunning cancels all attempts that have not returned. The caller must hold mu.
func (r *Race[T]) cancelRunning() {
	for n := range r.startedCount() {
		if a, running := r.attemptAt(n); running {
			a.Cancel()
		}
	}
}

// wakeRun wakes Run if it waits. It never blocks.
func (r *Race[T]) wakeRun() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// awaitResult waits until the result of the race is final, and returns it. The primary must have returned or must run in
// another goroutine.
func (r *Race[T]) awaitResult() Result[T] {
	done, left, stays := r.Style.Primary.Context.Done(), false, r.Style.TryAbandon == nil
	var hold *time.Timer
	var until time.Time // time at which hold fires
	defer func() {
		if hold != nil {
			hold.Stop()
		}
	}()
	r.mu.Lock()
	for !r.isSettled() && !left {
		ended := done
		if !r.primaryDone && stays {
			ended = nil // the primary observes the end of the context itself, and returns its own error
		}
		if r.hedges != nil {
			hold, until = r.updateFailureTimer(hold, until)
		}
		r.mu.Unlock()
		gone, late := r.waitForWake(ended, hold)
		r.mu.Lock()
		switch {
		case r.isSettled():
		case late && (r.hasScheduledHedge() || time.Now().Before(r.hedges.waitDeadline(r.schedule))):
			hold, until = nil, time.Time{} // another hedge has started or will start, so the failure is held longer
		case late:
			r.endFailureDelay()
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

// updateFailureTimer returns the timer hold, which fires at the time until, or its replacement if a hedge has started or ended
// since. A nil timer and a zero time mean that Run does not wait for hedges after a failure. The caller must hold mu.
func (r *Race[T]) updateFailureTimer(hold *time.Timer, until time.Time) (*time.Timer, time.Time) {
	deadline := r.failureDeadline()
	if deadline.Equal(until) {
		return hold, until
	}
	if hold != nil {
		hold.Stop()
	}
	if deadline.IsZero() {
		return nil, deadline
	}
	return time.NewTimer(time.Until(deadline)), deadline
}

// waitForWake waits for the first of three events: a call of wakeRun, the end of the caller's context, or the expiry of
// failureTimer.
//
// The channel ended is closed when the caller's context ends; then callerEnded is true. expired is true if failureTimer has
// expired. A nil channel or timer never fires.
func (r *Race[T]) waitForWake(ended <-chan struct{}, failureTimer *time.Timer) (callerEnded, expired bool) {
	if ended == nil && failureTimer == nil {
		<-r.wake // cheaper than a select
		return false, false
	}
	var reached <-chan time.Time
	if failureTimer != nil {
		reached = failureTimer.C
	}
	select {
	case <-r.wake:
	case <-ended:
		callerEnded = true
	case <-reached:
		expired = true
	}
	return callerEnded, expired
}

// endRace ends the race. It returns the result, or rethrows the panic of the primary. The caller must hold mu, and endRace
// unlocks it.
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
	r.stopTimer()
	isHedged := r.hedges != nil
	r.mu.Unlock()
	if isHedged { // otherwise the primary is the only attempt, and out refers to it
		r.detachAllBut(max(out.Winner, 0))
	}
	if p, ok := out.Err.(*Panic); ok {
		out.Attempt.Release() // the caller gets no Result, so it cannot release the attempt
		p.Rethrow()
	}
	return out
}

// detachAllBut makes the attempts other than attempt n stop using the caller's context, as far as [Options].Detach asks for
// it. With n = -1, it applies to all attempts. The race must be over.
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

// isSettled reports whether the result of the race is final, so that Run can return. The caller must hold mu.
func (r *Race[T]) isSettled() bool {
	if r.winner >= 0 {
		return r.primaryDone || r.Style.Async
	}
	h := r.hedges
	return r.primaryDone && (h == nil || h.failureDelay.ended || r.isIdle() && !h.isDue)
}

// Winner returns the result of the winner. ok is false if no attempt has won, or if the caller has left Run by a panic.
// Op.Discard may call Winner to find out whether a loser has the same result as the winner.
func (r *Race[T]) Winner() (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.winner >= 0 && r.phase != abandoned
}

// abandonRace ends the race after the caller has left Run by a panic or runtime.Goexit. It cancels all attempts and discards
// their results.
func (r *Race[T]) abandonRace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = abandoned
	r.notReusable.Store(true)
	r.stopTimer()
	r.cancelRunning()
	if r.winner >= 0 || r.primaryDone {
		a, ended := r.endLoser(max(r.winner, 0))
		go discardResult(r.op, r.value, r.err, a, ended)
	}
	if w := r.Style.Observer; w != nil && !r.primaryDone {
		w.AttemptEnded(r.Style.Primary, 0, Failed)
	}
}
