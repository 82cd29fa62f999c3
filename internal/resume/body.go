// Package resume is a body that goes on with another response when the first one stalls. When
// the rest may be asked for, how, and what is learned from a body, an [Asker] says.
package resume

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// An Asker asks for the rest of one body. Its methods are called by the body's reader and by the
// goroutines of timers.
type Asker interface {
	// On reports whether bodies are resumed at present.
	Enabled() bool

	// Ask returns the request for the rest, with these values of the headers Range and If-Range, if it is admitted, and else nil and
	// whether to ask again later. LikePrimary says that the request goes where primaries go. Ask
	// is called with the body locked.
	RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (r Request, later bool)

	// Learn is told of the longest time that a Read of the body waited.
	RecordPause(longest time.Duration)

	// Passed is told why the rest of a body was not asked for, of which a Read waited for so long, or was asked for in vain.
	RecordObstacle(why Obstacle, waited time.Duration)

	// Panicked is told that closing a body panicked.
	CountPanic()
}

// A Request is a request for the rest of a body, which was admitted.
type Request interface {
	// Send sends the request as attempt a, of the given number.
	Send(a *race.Attempt, number int) (*http.Response, error)

	// Decided is called when it is known whether the body goes on with the answer, before its reader knows.
	Decided(won bool)

	// Done is called last. If the request has not won, it discards what Send returned.
	Done(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error)
}

// A Response is an answer whose body may be resumed.
type Response struct {
	Context context.Context // the caller's
	Answer  *http.Response
	Part    Part          // that it holds
	Attempt *race.Attempt // of the answer; nil: it has no context of its own
	Hedge   bool          // the answer is that of a hedge
	Started int           // attempts of the call so far
	Stall   time.Duration // a Read that waits for so long has met a stall; 0: nothing is resumed
	Usual   time.Duration // in which the rest usually begins; 0: not known
	Left    int           // how often the rest may be asked for
}

// Start returns a copy of the answer whose body is b. It learns how it pauses and, if it stalls,
// is resumed. Start is called once, on a zero Body.
func (b *Body) Start(asker Asker, r Response) *http.Response {
	b.asker, b.ctx, b.resp, b.shown, b.made, b.stall = asker, r.Context, r.Answer, *r.Answer, time.Now(), r.Stall
	b.part = r.Part
	b.usual = r.Usual
	b.source, b.left, b.next = source{r.Answer.Body, r.Attempt, r.Hedge}, r.Left, r.Started
	b.passed = Usual
	switch {
	case r.Stall <= 0 && r.Attempt != nil && r.Left == 0:
		b.passed = Spent
	case r.Stall <= 0:
		b.passed = Learning
	}
	if r.Stall > 0 {
		b.header = r.Answer.Header.Clone()
	}
	b.shown.Body = b
	return &b.shown
}

// source is where a body comes from.
type source struct {
	io.ReadCloser
	attempt *race.Attempt // nil: it has no context of its own
	hedge   bool          // it was sent where hedges go
}

func (s source) release() {
	if s.attempt != nil {
		s.attempt.Release()
	}
}

// A Body can go on with another response when the first one stalls.
//
// Read reads from its source in the caller's goroutine, into the caller's memory. One
// timer looks now and then whether a Read has been waiting for too long. If so, its goroutine
// asks for the rest; when that arrives first, it interrupts the Read, which then goes on
// with the rest, from where it really is.
type Body struct {
	// Written before the body is handed out, and only read after.
	asker  Asker
	ctx    context.Context // the caller's
	resp   *http.Response  // as it came, but for its header, which the caller has
	header http.Header     // a copy of that; nil if the rest is never asked for
	part   Part
	made   time.Time
	stall  time.Duration // a Read that waits for so long has met a stall; 0: not known, or none is resumed
	usual  time.Duration // see Response

	shown http.Response // what the caller has; the reader sets its Trailer at the end
	clock clock

	// The reader's own. It changes source with mu locked.
	source  source
	contest bool  // the rest was being asked for when a Read returned without anything
	failed  error // the source's; nil: it goes on, or nobody waits for the rest any more

	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	retry   time.Duration // until a hedge that was denied is asked for again
	rest    *rest         // nil: none is asked for, or it has lost
	left    int           // how often the rest may still be asked for
	next    int           // the number of the next attempt
	learned bool
	closed  bool
	closer  source   // what to close, once closed
	gone    bool     // closed while the reader had the source that lost
	passed  Obstacle // why the rest was not asked for; "": it was, or that is said otherwise
}

// clock is how far the reader is, and since when it waits. The reader and the timer's
// goroutine use it without a lock.
type clock struct {
	since   atomic.Int64 // when the Read in progress began, since made and plus 1; negative: it waits while the rest is asked for; 0: there is none
	done    atomic.Int64 // bytes read; it grows before since changes
	longest atomic.Int64 // ns that a Read has waited; written by the reader alone
	watched atomic.Bool  // the timer is set, or is not needed any more
}

// A rest is a request for the rest of a body, and its answer. The body's mu guards it.
type rest struct {
	number  int
	off     int64
	attempt *race.Attempt
	asked   time.Time
	decided chan struct{} // closed when it has won or lost
	left    chan struct{} // closed when it has won and no Read of the other source runs, or the reader has closed the body
	over    bool          // decided is closed
	won     bool
	source  source // if it has won; from off on
}

// decide ends the contest. The caller holds mu.
func (r *rest) decide(won bool) {
	r.over, r.won = true, won
	close(r.decided)
}

// Read reads from whichever response the body goes on with.
func (b *Body) Read(p []byte) (int, error) {
	if b.failed != nil {
		return b.await(p)
	}
	c := &b.clock
	start := int64(time.Since(b.made)) + 1
	c.since.Store(start)
	if b.stall > 0 && !c.watched.Load() {
		b.watch()
	}
	n, err := b.source.Read(p)
	c.done.Add(int64(n))
	contest := c.since.Swap(0) < 0 || b.contest
	if waited := int64(time.Since(b.made)) + 1 - start; waited > c.longest.Load() {
		c.longest.Store(waited)
	}
	if err == nil && !contest {
		return n, nil
	}
	return b.settle(p, n, err)
}

// settle decides what a Read returns that came to an end, or met a stall.
func (b *Body) settle(p []byte, n int, err error) (int, error) {
	b.mu.Lock()
	r := b.rest
	switch {
	case r == nil: // nobody competes
		gone := b.gone
		b.contest = false
		b.mu.Unlock()
		if gone {
			err = http.ErrBodyReadAfterClose
		}
		if err != nil {
			b.end(err)
		}
		return n, err
	case r.won:
		b.adopt()
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.Read(p)
	case err != nil && err != io.EOF: // kept from the caller while the rest may still come
		b.failed = err
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.await(p)
	case n == 0 && err == nil && len(p) > 0:
		b.contest = true
		b.mu.Unlock()
		return 0, nil
	}
	r.decide(false)
	b.rest, b.contest = nil, false
	b.clock.watched.Store(b.left == 0)
	b.mu.Unlock()
	r.attempt.Lose()
	if err != nil {
		b.end(err)
	}
	return n, err
}

// await waits for the rest, which alone can go on: the source has failed. It waits as long as a
// call waits for a hedge, see [race.Bound].
func (b *Body) await(p []byte) (int, error) {
	b.mu.Lock()
	r := b.rest
	b.mu.Unlock()
	if r != nil {
		bound := time.NewTimer(race.Bound(b.usual, time.Since(b.made)) - time.Since(r.asked))
		defer bound.Stop()
		select {
		case <-r.decided:
		case <-b.ctx.Done():
		case <-bound.C:
		}
	}
	b.mu.Lock()
	if r != nil && r.won && !b.closed {
		b.adopt()
		b.mu.Unlock()
		return b.Read(p)
	}
	if r != nil && !r.over {
		r.decide(false)
	}
	b.rest, b.contest = nil, false
	b.mu.Unlock()
	if r != nil {
		r.attempt.Lose()
	}
	err := b.failed
	b.failed = nil // the source will say it again
	b.end(err)
	return 0, err
}

// adopt goes on with the rest. The caller holds mu.
func (b *Body) adopt() {
	r, done := b.rest, b.clock.done.Load()
	b.source = r.source
	b.source.ReadCloser = &tail{r.source.ReadCloser, done - r.off, b.resp.ContentLength - done}
	b.rest, b.contest, b.failed = nil, false, nil
	b.clock.watched.Store(b.left == 0)
	close(r.left)
}

// tail is the rest of a body, from some bytes before the reader on.
type tail struct {
	io.ReadCloser
	skip int64 // bytes that the reader has
	left int64 // bytes that it has not
}

func (t *tail) Read(p []byte) (int, error) {
	for t.left > 0 {
		want := t.left
		if t.skip > 0 {
			want = t.skip
		}
		n, err := t.ReadCloser.Read(p[:min(int64(len(p)), want)])
		switch {
		case t.skip > 0:
			t.skip -= int64(n)
			n = 0
		default:
			t.left -= int64(n)
		}
		switch {
		case t.left == 0: // whatever the server may have to add
			return n, io.EOF
		case err == io.EOF:
			return n, io.ErrUnexpectedEOF
		case n > 0 || err != nil || len(p) == 0:
			return n, err
		}
	}
	return 0, io.EOF
}

// Close closes the body, and what was asked for its rest.
func (b *Body) Close() error {
	b.mu.Lock()
	if b.closed {
		closer := b.closer
		b.mu.Unlock()
		return closer.Close()
	}
	b.closed, b.closer = true, b.source
	r := b.rest
	switch {
	case r == nil:
	case r.won:
		b.closer, b.gone = r.source, true
		close(r.left)
	default:
		r.decide(false)
	}
	b.rest = nil
	closer := b.closer
	b.mu.Unlock()
	err := closer.Close()
	if r != nil && !r.won {
		r.attempt.Lose()
	}
	b.finish(closer)
	return err
}

// end is called when the body has come to its end, or has failed.
func (b *Body) end(err error) {
	if err == io.EOF && b.resp.Trailer != nil {
		b.shown.Trailer = b.resp.Trailer
	}
	b.finish(b.source)
}

// finish learns from the body, and lets go of what it holds. It may be called again.
func (b *Body) finish(s source) {
	s.release()
	longest := time.Duration(b.clock.longest.Load())
	if since := b.clock.since.Load(); since != 0 { // closed while a Read waits
		longest = max(longest, time.Since(b.made)-time.Duration(max(since, -since)-1))
	}
	whole := b.clock.done.Load() >= b.resp.ContentLength

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	// Of a body that is not read whole nothing is known but that it may have been slow.
	if !b.learned && (whole || b.stall > 0 && longest > b.stall) {
		b.asker.RecordPause(longest)
	}
	if !b.learned && b.passed != "" && (b.passed != Usual || longest < b.stall) {
		b.asker.RecordObstacle(b.passed, longest)
	}
	b.learned, b.left = true, 0
}

// watch sets the timer, if it is not set.
func (b *Body) watch() {
	if b.clock.watched.Swap(true) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.left == 0 || b.closed:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.stall, b.look)
	default:
		b.timer.Reset(b.stall)
	}
}

// pause leaves the timer to the next Read, as none waits. The caller holds mu.
func (b *Body) pause() {
	b.clock.watched.Store(false)
	if b.clock.since.Load() != 0 && !b.clock.watched.Swap(true) { // it has come meanwhile, and believes that the timer is set
		b.timer.Reset(b.stall)
	}
}

// look is called by the timer. It asks for the rest if a Read has been waiting for too long.
func (b *Body) look() {
	if ask, r := b.stalled(); r != nil {
		b.resume(ask, r)
	}
}

// stalled returns the request for the rest, if it is time for that.
func (b *Body) stalled() (Request, *rest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 || b.closed || b.rest != nil {
		return nil, nil
	}
	c := &b.clock
	since := c.since.Load()
	if since == 0 {
		b.pause()
		return nil, nil
	}
	if waited := time.Since(b.made) - time.Duration(since-1); waited < b.stall {
		b.timer.Reset(b.stall - waited)
		b.retry = 0
		return nil, nil
	}
	off := c.done.Load()
	if off >= b.resp.ContentLength || !b.asker.Enabled() || b.ctx.Err() != nil {
		return nil, nil
	}
	if !c.since.CompareAndSwap(since, -since) { // it has just returned
		b.pause()
		return nil, nil
	}
	b.passed = ""
	ask, later := b.asker.RequestRemainder(b.ctx, b.part.after(off), b.part.validator, b.source.hedge)
	if ask == nil {
		c.since.CompareAndSwap(-since, since)
		b.askLater(later)
		return nil, nil
	}
	r := &rest{
		number: b.next, off: off, attempt: race.NewAttempt(b.ctx, b.next), asked: time.Now(),
		decided: make(chan struct{}), left: make(chan struct{}),
	}
	b.next++
	b.left--
	b.rest = r
	return ask, r
}

// askLater sets the timer after a request that was denied. The caller holds mu.
func (b *Body) askLater(later bool) {
	if !later {
		b.left = 0
		return
	}
	b.retry = max(2*b.retry, b.stall)
	b.timer.Reset(b.retry)
}

// errNotTheRest is the error of an answer that holds something else than the rest.
var errNotTheRest = errors.New("hedge: answer is not the rest of the body")

// resume asks for the rest, and hands it over if it is first.
func (b *Body) resume(ask Request, r *rest) {
	var (
		resp *http.Response
		err  error = new(race.Panic) // unless Send returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &race.Panic{Value: p}
		}
		b.resumed(ask, r, resp, err)
	}()
	if resp, err = ask.Send(r.attempt, r.number); err == nil {
		err = b.check(resp, r.off)
	}
}

// check waits for the first bytes of an answer, and returns why it cannot be the rest, if so.
func (b *Body) check(resp *http.Response, off int64) error {
	if !b.part.continues(b.header, resp, off) {
		return errNotTheRest
	}
	switch n, err := httpattempt.Prefetch(resp); {
	case err == nil:
		return nil
	case err != io.EOF:
		return httpattempt.ErrFailure
	case int64(n) < b.resp.ContentLength-off:
		return errNotTheRest // it ends too soon
	}
	return nil
}

// resumed takes the answer to the request for the rest, or what became of it.
func (b *Body) resumed(ask Request, r *rest, resp *http.Response, err error) {
	b.mu.Lock()
	how, loser := race.OutcomeOf(err), b.source
	switch {
	case r.over:
		how = race.Lost
	case err == nil:
		r.source = source{resp.Body, r.attempt, !loser.hedge}
		r.decide(true)
	default:
		b.rest, b.left = nil, 0 // the source goes on alone
		r.decide(false)
	}
	b.mu.Unlock()
	if how == race.Failed {
		b.asker.RecordObstacle(NoRest, time.Since(r.asked))
	}
	ask.Decided(how == race.Won)
	if how != race.Won {
		r.attempt.Lose()
	}
	ask.Done(r.attempt, r.number, how, resp, err)
	if how == race.Won {
		httpattempt.NewCloser(loser.ReadCloser, loser.attempt, b.asker.CountPanic).End(r.left)
	}
}
