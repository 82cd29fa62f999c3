// Package resume continues the body of a response with another response if the first one stalls. A [Requester] decides
// whether the remainder may be requested, sends the request, and records pauses.
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

// A Requester requests the remainder of one body. The reader of the body and goroutines of timers call its methods.
type Requester interface {
	// Enabled reports whether bodies are resumed at present.
	Enabled() bool

	// RequestRemainder returns a request with the given Range and If-Range headers if it is admitted. Otherwise it returns nil,
	// and later reports whether to try again. LikePrimary selects the connections of primaries. The body is locked meanwhile.
	RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (r Request, later bool)

	// RecordPause records the longest wait of a Read.
	RecordPause(longest time.Duration)

	// RecordObstacle records why a body was not resumed although a Read waited.
	RecordObstacle(why Obstacle, waited time.Duration)

	// CountPanic counts a panic while a body was closed.
	CountPanic()
}

// A Request is an admitted request for the remainder of a body.
type Request interface {
	// Send sends the request as attempt a with the given number.
	Send(a *race.Attempt, number int) (*http.Response, error)

	// RecordDecision records whether the body continues with the response. The reader of the body gets it later.
	RecordDecision(won bool)

	// Release is called last. It discards the result of Send unless the request has won.
	Release(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error)
}

// A Response is a response with a body that may be resumed.
type Response struct {
	Context         context.Context // of the caller
	Response        *http.Response
	Range           ByteRange     // of the body
	Attempt         *race.Attempt // of the response; nil: it has no context of its own
	IsHedge         bool          // a hedge got the response
	AttemptsStarted int           // attempts of the call so far
	StallTimeout    time.Duration // wait of a Read that counts as a stall; 0: the body is not resumed
	UsualTime       time.Duration // usual latency of a request for the remainder; 0: not known
	HedgesLeft      int           // most requests for the remainder
}

// Start returns a copy of the response whose body is b. The body records its pauses, and resumes after a stall. Start is called once, on a zero Body.
func (b *Body) Start(requester Requester, r Response) *http.Response {
	b.requester, b.ctx, b.resp, b.callerResponse, b.startTime, b.stallTimeout = requester, r.Context, r.Response, *r.Response, time.Now(), r.StallTimeout
	b.byteRange = r.Range
	b.usualTime = r.UsualTime
	b.source, b.hedgesLeft, b.nextAttempt = bodySource{r.Response.Body, r.Attempt, r.IsHedge}, r.HedgesLeft, r.AttemptsStarted
	b.obstacle = UsualPause
	switch {
	case r.StallTimeout <= 0 && r.Attempt != nil && r.HedgesLeft == 0:
		b.obstacle = NoHedgesLeft
	case r.StallTimeout <= 0:
		b.obstacle = Learning
	}
	if r.StallTimeout > 0 {
		b.header = r.Response.Header.Clone()
	}
	b.callerResponse.Body = b
	return &b.callerResponse
}

// A bodySource is the body of a response from which a Body reads.
type bodySource struct {
	io.ReadCloser
	attempt        *race.Attempt // nil: it has no context of its own
	usesHedgeConns bool          // it came over the connections of hedges
}

func (s bodySource) release() {
	if s.attempt != nil {
		s.attempt.Release()
	}
}

// A Body continues with another response if the first one stalls.
//
// Read reads from the source in the goroutine and into the memory of the caller. A timer checks whether a Read has waited too long. If so, the
// goroutine of the timer requests the remainder. If the remainder arrives first, that goroutine interrupts the Read, which then continues with the
// remainder at the current offset.
type Body struct {
	// Immutable after Start.
	requester    Requester
	ctx          context.Context // of the caller
	resp         *http.Response  // as received; the caller owns its header
	header       http.Header     // a copy of the header of resp; nil: the remainder is never requested
	byteRange    ByteRange
	startTime    time.Time
	stallTimeout time.Duration // wait of a Read that counts as a stall; 0: not known, or the body is not resumed
	usualTime    time.Duration // see Response

	callerResponse http.Response // the response that the caller got; the reader sets its Trailer at the end
	progress       readProgress

	// Owned by the reader. It locks mu to change source.
	source      bodySource
	isContested bool  // the remainder was being requested when a Read returned no bytes
	sourceErr   error // error of the source, held back while the remainder may still come; nil: none

	mu             sync.Mutex // guards the fields below
	timer          *time.Timer
	retryDelay     time.Duration // next delay after a request that was denied
	remainder      *remainder    // nil: not requested, or it has lost
	hedgesLeft     int           // most further requests for the remainder
	nextAttempt    int           // number of the next attempt
	recorded       bool          // recordResult has recorded the body
	closed         bool
	closer         bodySource // the source that Close closed
	closedByCaller bool       // closed while the reader had the source that lost
	obstacle       Obstacle   // why the remainder was not requested; "": it was, or the denial is recorded otherwise
}

// readProgress is the offset of the reader and the start of its wait. The reader and the timer use it without a lock.
type readProgress struct {
	waitStart   atomic.Int64 // start of the current Read, since startTime and plus 1; negative: the remainder is being requested; 0: no Read
	bytesRead   atomic.Int64 // grows before waitStart changes
	longestWait atomic.Int64 // of a Read, in ns; written by the reader alone
	timerSet    atomic.Bool  // the timer is set, or not needed any more
}

// A remainder is the request for the remainder of a body, and its response. The mu of the body guards it.
type remainder struct {
	number      int
	offset      int64
	attempt     *race.Attempt
	requestTime time.Time
	decided     chan struct{} // closed when it has won or lost
	released    chan struct{} // closed when it has won and the reader has left the other source, or has closed the body
	isDecided   bool          // decided is closed
	won         bool
	source      bodySource // set if it has won; starts at offset
}

// decide records whether the remainder has won. The caller holds mu.
func (r *remainder) decide(won bool) {
	r.isDecided, r.won = true, won
	close(r.decided)
}

// Read reads from the current source.
func (b *Body) Read(p []byte) (int, error) {
	if b.sourceErr != nil {
		return b.awaitRemainder(p)
	}
	c := &b.progress
	start := int64(time.Since(b.startTime)) + 1
	c.waitStart.Store(start)
	if b.stallTimeout > 0 && !c.timerSet.Load() {
		b.startTimer()
	}
	n, err := b.source.Read(p)
	c.bytesRead.Add(int64(n))
	contest := c.waitStart.Swap(0) < 0 || b.isContested
	if waited := int64(time.Since(b.startTime)) + 1 - start; waited > c.longestWait.Load() {
		c.longestWait.Store(waited)
	}
	if err == nil && !contest {
		return n, nil
	}
	return b.finishRead(p, n, err)
}

// finishRead returns the result of a Read that failed or raced with the remainder.
func (b *Body) finishRead(p []byte, n int, err error) (int, error) {
	b.mu.Lock()
	r := b.remainder
	switch {
	case r == nil: // no remainder is requested
		gone := b.closedByCaller
		b.isContested = false
		b.mu.Unlock()
		if gone {
			err = http.ErrBodyReadAfterClose
		}
		if err != nil {
			b.handleReadError(err)
		}
		return n, err
	case r.won:
		b.switchToRemainder()
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.Read(p)
	case err != nil && err != io.EOF: // held back while the remainder may still come
		b.sourceErr = err
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.awaitRemainder(p)
	case n == 0 && err == nil && len(p) > 0:
		b.isContested = true
		b.mu.Unlock()
		return 0, nil
	}
	r.decide(false)
	b.remainder, b.isContested = nil, false
	b.progress.timerSet.Store(b.hedgesLeft == 0)
	b.mu.Unlock()
	r.attempt.CancelAndDetach()
	if err != nil {
		b.handleReadError(err)
	}
	return n, err
}

// awaitRemainder waits for the remainder after the source has failed. It waits as long as a call waits for a hedge, see [race.BoundHedgeTimeout].
func (b *Body) awaitRemainder(p []byte) (int, error) {
	b.mu.Lock()
	r := b.remainder
	b.mu.Unlock()
	if r != nil {
		bound := time.NewTimer(race.BoundHedgeTimeout(b.usualTime, time.Since(b.startTime)) - time.Since(r.requestTime))
		defer bound.Stop()
		select {
		case <-r.decided:
		case <-b.ctx.Done():
		case <-bound.C:
		}
	}
	b.mu.Lock()
	if r != nil && r.won && !b.closed {
		b.switchToRemainder()
		b.mu.Unlock()
		return b.Read(p)
	}
	if r != nil && !r.isDecided {
		r.decide(false)
	}
	b.remainder, b.isContested = nil, false
	b.mu.Unlock()
	if r != nil {
		r.attempt.CancelAndDetach()
	}
	err := b.sourceErr
	b.sourceErr = nil // the source returns it again
	b.handleReadError(err)
	return 0, err
}

// switchToRemainder makes the remainder the source. The caller holds mu.
func (b *Body) switchToRemainder() {
	r, done := b.remainder, b.progress.bytesRead.Load()
	b.source = r.source
	b.source.ReadCloser = &remainderReader{r.source.ReadCloser, done - r.offset, b.resp.ContentLength - done}
	b.remainder, b.isContested, b.sourceErr = nil, false, nil
	b.progress.timerSet.Store(b.hedgesLeft == 0)
	close(r.released)
}

// A remainderReader reads the remainder of a body. It skips the bytes that the reader already has.
type remainderReader struct {
	io.ReadCloser
	skip   int64 // bytes that the reader already has
	unread int64 // bytes after them
}

func (t *remainderReader) Read(p []byte) (int, error) {
	for t.unread > 0 {
		want := t.unread
		if t.skip > 0 {
			want = t.skip
		}
		n, err := t.ReadCloser.Read(p[:min(int64(len(p)), want)])
		switch {
		case t.skip > 0:
			t.skip -= int64(n)
			n = 0
		default:
			t.unread -= int64(n)
		}
		switch {
		case t.unread == 0: // further bytes of the server are ignored
			return n, io.EOF
		case err == io.EOF:
			return n, io.ErrUnexpectedEOF
		case n > 0 || err != nil || len(p) == 0:
			return n, err
		}
	}
	return 0, io.EOF
}

// Close closes the body, and cancels the request for its remainder.
func (b *Body) Close() error {
	b.mu.Lock()
	if b.closed {
		closer := b.closer
		b.mu.Unlock()
		return closer.Close()
	}
	b.closed, b.closer = true, b.source
	r := b.remainder
	switch {
	case r == nil:
	case r.won:
		b.closer, b.closedByCaller = r.source, true
		close(r.released)
	default:
		r.decide(false)
	}
	b.remainder = nil
	closer := b.closer
	b.mu.Unlock()
	err := closer.Close()
	if r != nil && !r.won {
		r.attempt.CancelAndDetach()
	}
	b.recordResult(closer)
	return err
}

// handleReadError handles the end of the body or its error.
func (b *Body) handleReadError(err error) {
	if err == io.EOF && b.resp.Trailer != nil {
		b.callerResponse.Trailer = b.resp.Trailer
	}
	b.recordResult(b.source)
}

// recordResult records the pauses of the body and releases the source s. Later calls record nothing.
func (b *Body) recordResult(s bodySource) {
	s.release()
	longest := time.Duration(b.progress.longestWait.Load())
	if since := b.progress.waitStart.Load(); since != 0 { // closed while a Read waits
		longest = max(longest, time.Since(b.startTime)-time.Duration(max(since, -since)-1))
	}
	whole := b.progress.bytesRead.Load() >= b.resp.ContentLength

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	// A body that was not read to its end only counts if it stalled.
	if !b.recorded && (whole || b.stallTimeout > 0 && longest > b.stallTimeout) {
		b.requester.RecordPause(longest)
	}
	if !b.recorded && b.obstacle != "" && (b.obstacle != UsualPause || longest < b.stallTimeout) {
		b.requester.RecordObstacle(b.obstacle, longest)
	}
	b.recorded, b.hedgesLeft = true, 0
}

// startTimer sets the timer unless it is set.
func (b *Body) startTimer() {
	if b.progress.timerSet.Swap(true) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.hedgesLeft == 0 || b.closed:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.stallTimeout, b.checkForStall)
	default:
		b.timer.Reset(b.stallTimeout)
	}
}

// stopTimer leaves the timer to the next Read, because no Read waits. The caller holds mu.
func (b *Body) stopTimer() {
	b.progress.timerSet.Store(false)
	if b.progress.waitStart.Load() != 0 && !b.progress.timerSet.Swap(true) { // a Read started meanwhile and found the timer set
		b.timer.Reset(b.stallTimeout)
	}
}

// checkForStall requests the remainder if a Read has waited too long. The timer calls it.
func (b *Body) checkForStall() {
	if req, r := b.admitRemainder(); r != nil {
		b.requestRemainder(req, r)
	}
}

// admitRemainder returns an admitted request for the remainder if a Read has waited too long, and otherwise nil.
func (b *Body) admitRemainder() (Request, *remainder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hedgesLeft == 0 || b.closed || b.remainder != nil {
		return nil, nil
	}
	c := &b.progress
	since := c.waitStart.Load()
	if since == 0 {
		b.stopTimer()
		return nil, nil
	}
	if waited := time.Since(b.startTime) - time.Duration(since-1); waited < b.stallTimeout {
		b.timer.Reset(b.stallTimeout - waited)
		b.retryDelay = 0
		return nil, nil
	}
	off := c.bytesRead.Load()
	if off >= b.resp.ContentLength || !b.requester.Enabled() || b.ctx.Err() != nil {
		return nil, nil
	}
	if !c.waitStart.CompareAndSwap(since, -since) { // the Read has just returned
		b.stopTimer()
		return nil, nil
	}
	b.obstacle = ""
	req, later := b.requester.RequestRemainder(b.ctx, b.byteRange.rangeAfter(off), b.byteRange.validator, b.source.usesHedgeConns)
	if req == nil {
		c.waitStart.CompareAndSwap(-since, since)
		b.scheduleRetry(later)
		return nil, nil
	}
	r := &remainder{
		number: b.nextAttempt, offset: off, attempt: race.NewAttempt(b.ctx, b.nextAttempt), requestTime: time.Now(),
		decided: make(chan struct{}), released: make(chan struct{}),
	}
	b.nextAttempt++
	b.hedgesLeft--
	b.remainder = r
	return req, r
}

// scheduleRetry sets the timer after a request that was denied. The caller holds mu.
func (b *Body) scheduleRetry(later bool) {
	if !later {
		b.hedgesLeft = 0
		return
	}
	b.retryDelay = max(2*b.retryDelay, b.stallTimeout)
	b.timer.Reset(b.retryDelay)
}

// errNotRemainder is the error of a response that is not the remainder of the body.
var errNotRemainder = errors.New("hedge: answer is not the rest of the body")

// requestRemainder sends the request, and makes the response the source of the body if it is first.
func (b *Body) requestRemainder(req Request, r *remainder) {
	var (
		resp *http.Response
		err  error = new(race.Panic) // unless Send returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &race.Panic{Value: p}
		}
		b.handleRemainder(req, r, resp, err)
	}()
	if resp, err = req.Send(r.attempt, r.number); err == nil {
		err = b.checkRemainder(resp, r.offset)
	}
}

// checkRemainder waits for the first bytes of a response, and returns an error if it is not the remainder.
func (b *Body) checkRemainder(resp *http.Response, off int64) error {
	if !b.byteRange.isContinuedBy(b.header, resp, off) {
		return errNotRemainder
	}
	switch n, err := httpattempt.Prefetch(resp); {
	case err == nil:
		return nil
	case err != io.EOF:
		return httpattempt.ErrFailure
	case int64(n) < b.resp.ContentLength-off:
		return errNotRemainder // it ends too early
	}
	return nil
}

// handleRemainder decides between the source and the remainder after the request has ended.
func (b *Body) handleRemainder(req Request, r *remainder, resp *http.Response, err error) {
	b.mu.Lock()
	how, loser := race.OutcomeOf(err), b.source
	switch {
	case r.isDecided:
		how = race.Lost
	case err == nil:
		r.source = bodySource{resp.Body, r.attempt, !loser.usesHedgeConns}
		r.decide(true)
	default:
		b.remainder, b.hedgesLeft = nil, 0 // the remainder is not requested again
		r.decide(false)
	}
	b.mu.Unlock()
	if how == race.Failed {
		b.requester.RecordObstacle(NotRemainder, time.Since(r.requestTime))
	}
	req.RecordDecision(how == race.Won)
	if how != race.Won {
		r.attempt.CancelAndDetach()
	}
	req.Release(r.attempt, r.number, how, resp, err)
	if how == race.Won {
		httpattempt.NewBodyCloser(loser.ReadCloser, loser.attempt, b.requester.CountPanic).CloseAfterRead(r.released)
	}
}
