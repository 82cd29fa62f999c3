// Package resume continues the body of a response with the response to another request if the body stalls, or if it is
// the body of a hedge and fails. A [Requester] decides whether the remainder of the body may be requested, sends the
// request, and records pauses of the body.
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

// A Requester requests the remainder of one stalled body. The reader of the body and goroutines of timers call its
// methods, possibly concurrently.
type Requester interface {
	// Enabled reports whether bodies may be resumed at present. It is called before each request for a remainder.
	Enabled() bool

	// RequestRemainder returns an admitted request with the given Range and If-Range headers. If the request is denied, r
	// is nil, and later says whether RequestRemainder may be called again.
	//
	// If likePrimary is true, the request uses the connections of primaries. RequestRemainder must not call methods of the
	// body, because the body is locked.
	RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (r Request, later bool)

	// RecordPause records the longest time that a Read of the body has waited for data. It is called at the end of the
	// body.
	RecordPause(longest time.Duration)

	// RecordObstacle records that the body was not resumed, for the reason why. The argument waited is the time that a
	// Read had waited.
	RecordObstacle(why Obstacle, waited time.Duration)

	// CountPanic counts a panic that occurred while a body was closed.
	CountPanic()
}

// A Request is an admitted request for the remainder of a body. Its methods are called in the order Send,
// RecordDecision, Release.
type Request interface {
	// Send sends the request as attempt a. The argument number is the number of a in its call.
	Send(a *race.Attempt, number int) (*http.Response, error)

	// RecordDecision records whether the request has won: the body continues with its response. It is called before the
	// reader gets bytes of the response.
	RecordDecision(won bool)

	// Release records the end of attempt a, with the outcome how. It discards resp unless the outcome is [race.Won].
	Release(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error)
}

// A Response is the input of [Body.Start]: a response whose body may be resumed, and limits for requests for the
// remainder.
type Response struct {
	Context         context.Context // the caller's context
	Response        *http.Response
	Range           ByteRange     // byte range of the representation that the body contains
	Attempt         *race.Attempt // attempt that got the response; nil if there is no attempt to release
	IsHedge         bool          // a hedge got the response
	AttemptsStarted int           // number of attempts that the call has started
	StallTimeout    time.Duration // a Read that waits this long is a stall; 0: the body is not resumed
	UsualTime       time.Duration // usual latency of a request for the remainder; 0 if not known
	HedgesLeft      int           // number of hedges of the call that are left; each request for the remainder is one of them
}

// CanRequestRemainder reports whether the remainder of the body may be requested: because the body stalls, or because a
// hedge got the response and its body fails.
func (r *Response) CanRequestRemainder() bool { return r.StallTimeout > 0 || r.IsHedge }

// Start initializes b with the response in r, which may later be continued by responses to requests of requester. It
// returns a copy of the response whose body is b. It must be called once, on a zero Body.
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
	if r.CanRequestRemainder() {
		b.header = r.Response.Header.Clone()
	}
	b.callerResponse.Body = b
	return &b.callerResponse
}

// A bodySource is the response body from which a [Body] reads: the original body, or the body with the remainder.
type bodySource struct {
	io.ReadCloser
	attempt        *race.Attempt // attempt to release at the end of the body; nil if there is none
	usesHedgeConns bool          // the response came over the connection pool of hedges
}

// isHedge reports whether a hedge got the response.
func (s bodySource) isHedge() bool { return s.attempt != nil && s.attempt.IsHedge() }

// release releases the attempt that got the response, if there is such an attempt.
func (s bodySource) release() {
	if s.attempt != nil {
		s.attempt.Release()
	}
}

// A Body is a response body that continues with the response to another request if the original body stalls.
//
// If the response of a hedge fails while no remainder is requested, Read requests the remainder and waits for it. The
// request replaces the primary, which was cancelled when the hedge won. It needs admission like a hedge.
//
// Read runs in the caller's goroutine and reads into the caller's memory. A timer checks whether a Read has waited too
// long. If so, the timer's goroutine requests the remainder. If the remainder arrives before the original body
// continues, this goroutine interrupts the Read, which continues with the remainder at the current offset.
type Body struct {
	// Immutable after Start.
	requester    Requester
	ctx          context.Context // the caller's context
	resp         *http.Response  // response as received; the caller may change its header
	header       http.Header     // copy of the response header; nil if the remainder is never requested
	byteRange    ByteRange
	startTime    time.Time
	stallTimeout time.Duration // a Read that waits this long is a stall; 0: the body is not resumed
	usualTime    time.Duration // usual latency of a request for the remainder; 0 if not known

	callerResponse http.Response // the response that the caller has; the reader sets its Trailer at the end
	progress       readProgress

	// Used only by the reader, which locks mu to change source.
	source      bodySource
	isContested bool  // a request for the remainder was pending when a Read returned no bytes
	sourceErr   error // error of the source that Read has not returned yet, because the remainder may still arrive

	mu                 sync.Mutex    // guards the fields below
	timer              *time.Timer   // calls checkForStall; nil until the first Read
	retryDelay         time.Duration // time from a denied request to the next request
	remainder          *remainder    // pending or winning request for the remainder; nil if there is none
	hedgesLeft         int           // number of hedges of the call that are left; -1: nor may a failed hedge be replaced
	nextAttempt        int           // number of the next attempt of the call
	recorded           bool          // recordResult has been called
	closed             bool          // Close was called
	closer             bodySource    // the source that Close has closed
	closedBeforeSwitch bool          // Close was called after the remainder had won and before the reader used it
	obstacle           Obstacle      // reason why the remainder was not requested; "" if it was requested or its denial was counted
}

// A readProgress holds the position of the reader in the body and the start of the current Read. The reader and the
// timer's goroutine use it without a lock.
type readProgress struct {
	waitStart   atomic.Int64 // start of the current Read, in nanoseconds after startTime, plus 1; 0: no Read is running; negated while the remainder is requested
	bytesRead   atomic.Int64 // number of bytes returned to the caller; updated before waitStart
	longestWait atomic.Int64 // duration of the longest Read in nanoseconds; only the reader writes it
	timerSet    atomic.Bool  // the timer is set, or no timer is needed any more
}

// A remainder is a request for the remainder of a body, with its response. The mutex of the [Body] guards the fields.
type remainder struct {
	number int // number of the attempt in its call
	// offset in the body at which the remainder starts, in bytes
	offset      int64
	attempt     *race.Attempt
	requestTime time.Time     // time when the remainder was requested
	decided     chan struct{} // closed when isDecided becomes true
	released    chan struct{} // closed when the remainder has won and the reader no longer uses the original source
	isDecided   bool          // it is decided whether the remainder wins
	won         bool          // the body continues with the remainder
	source      bodySource    // body with the remainder, from offset on; set if the remainder has won
}

// recordDecision records whether the remainder has won, and wakes goroutines that wait for the decision. The caller must hold
// the mutex of the [Body].
func (r *remainder) recordDecision(won bool) {
	r.isDecided, r.won = true, won
	close(r.decided)
}

// Read implements [io.Reader]. It reads from the original body, or from the remainder after the remainder has won.
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

// finishRead completes a Read of the source that got an error, or during which the remainder was requested. The
// arguments n and err are the result of the source's Read into p. It returns the result of Read.
//
// If the source has continued first, finishRead cancels the request for the remainder. If the remainder has won, the
// next bytes come from the remainder. An error of the source is only returned when the remainder can no longer arrive.
// If the source is that of a hedge, an error leads to a request for the remainder.
func (b *Body) finishRead(p []byte, n int, err error) (int, error) {
	b.mu.Lock()
	if err != nil && err != io.EOF && b.remainder == nil && b.source.isHedge() {
		b.replaceFailedHedge()
	}
	r := b.remainder
	switch {
	case r == nil: // no remainder is requested
		gone := b.closedBeforeSwitch
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
	case err != nil && err != io.EOF: // err is not returned while the remainder may still arrive
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
	r.recordDecision(false)
	b.remainder, b.isContested = nil, false
	b.progress.timerSet.Store(b.hedgesLeft <= 0)
	b.mu.Unlock()
	r.attempt.CancelAndDetach()
	if err != nil {
		b.handleReadError(err)
	}
	return n, err
}

// awaitRemainder waits for the pending remainder after the source has failed, and then reads from the remainder into p.
// It waits as long as a call whose primary has failed waits for a hedge, see [race.HedgeTimeoutAfterFailure], but at most
// [race.MaxFailureDelay] if no usual latency is known. If the remainder does not arrive, it returns the error of the source.
func (b *Body) awaitRemainder(p []byte) (int, error) {
	b.mu.Lock()
	r := b.remainder
	b.mu.Unlock()
	if r != nil {
		took := time.Since(b.startTime)
		if b.usualTime <= 0 {
			took = min(took, race.MaxFailureDelay) // the reader itself may have taken hours
		}
		bound := time.NewTimer(race.HedgeTimeoutAfterFailure(b.usualTime, took) - time.Since(r.requestTime))
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
		r.recordDecision(false)
	}
	b.remainder, b.isContested = nil, false
	b.mu.Unlock()
	if r != nil {
		r.attempt.CancelAndDetach()
	}
	err := b.sourceErr
	b.sourceErr = nil // the source returns the error again in the next Read
	b.handleReadError(err)
	return 0, err
}

// switchToRemainder makes the remainder, which must have won, the source of the body. The caller must hold mu.
func (b *Body) switchToRemainder() {
	r, done := b.remainder, b.progress.bytesRead.Load()
	b.source = r.source
	b.source.ReadCloser = &remainderReader{r.source.ReadCloser, done - r.offset, b.resp.ContentLength - done}
	b.remainder, b.isContested, b.sourceErr = nil, false, nil
	b.progress.timerSet.Store(b.hedgesLeft <= 0)
	close(r.released)
}

// A remainderReader reads the remainder of a body, without the bytes that the caller already has. It returns [io.EOF]
// after the last byte of the body, even if the server sends more bytes.
type remainderReader struct {
	io.ReadCloser
	skip   int64 // number of bytes to skip before the first byte for the caller
	unread int64 // number of bytes for the caller that are not read yet
}

// Read implements [io.Reader]. If the remainder ends too early, it returns io.ErrUnexpectedEOF.
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

// Close closes the body, and cancels a pending request for the remainder. It returns the error of closing the current
// source.
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
		b.closer, b.closedBeforeSwitch = r.source, true
		close(r.released)
	default:
		r.recordDecision(false)
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

// handleReadError ends the body after a Read has failed with err. It releases the source and records the pauses of the
// body. If err is [io.EOF], it sets the trailers of the caller's response.
func (b *Body) handleReadError(err error) {
	if err == io.EOF && b.resp.Trailer != nil {
		b.callerResponse.Trailer = b.resp.Trailer
	}
	b.recordResult(b.source)
}

// recordResult releases the source s at the end of the body. The first call also reports the outcome to the
// [Requester]: the longest pause of the body, and the reason if a stalled body was not resumed.
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
	b.recorded = true
	b.forbidRequests()
}

// startTimer starts the timer that checks for a stall, unless the timer is already set or no more requests are allowed.
func (b *Body) startTimer() {
	if b.progress.timerSet.Swap(true) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.hedgesLeft <= 0 || b.closed:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.stallTimeout, b.checkForStall)
	default:
		b.timer.Reset(b.stallTimeout)
	}
}

// markTimerStopped records that the timer is not set, so that the next Read sets it again. It is called after the timer has
// fired while no Read was waiting. If a Read has started since then, stopTimer sets the timer itself. The caller must
// hold mu.
func (b *Body) markTimerStopped() {
	b.progress.timerSet.Store(false)
	if b.progress.waitStart.Load() != 0 && !b.progress.timerSet.Swap(true) { // a Read has started meanwhile and has not set the timer
		b.timer.Reset(b.stallTimeout)
	}
}

// checkForStall requests the remainder if a Read has waited for the stall timeout. The timer calls it on a goroutine of
// its own.
func (b *Body) checkForStall() {
	if req, r := b.admitRemainder(); r != nil {
		b.requestRemainder(req, r)
	}
}

// admitRemainder decides whether the remainder is requested now. If a Read has waited for the stall timeout, it asks
// the [Requester] to admit the request. It returns the admitted request and a new remainder.
//
// Otherwise it returns nil, and sets the timer again if the remainder may be requested later.
func (b *Body) admitRemainder() (Request, *remainder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hedgesLeft <= 0 || b.closed || b.remainder != nil {
		return nil, nil
	}
	c := &b.progress
	since := c.waitStart.Load()
	if since == 0 {
		b.markTimerStopped()
		return nil, nil
	}
	if waited := time.Since(b.startTime) - time.Duration(since-1); waited < b.stallTimeout {
		b.timer.Reset(b.stallTimeout - waited)
		b.retryDelay = 0
		return nil, nil
	}
	off := c.bytesRead.Load()
	if !b.needsRemainder(off) {
		return nil, nil
	}
	if !c.waitStart.CompareAndSwap(since, -since) { // the Read has just returned
		b.markTimerStopped()
		return nil, nil
	}
	req, later := b.admitRequest(off)
	if req == nil {
		c.waitStart.CompareAndSwap(-since, since)
		b.scheduleRetry(later)
		return nil, nil
	}
	return req, b.remainder
}

// replaceFailedHedge requests the remainder after the source, which a hedge got, has failed. The request is allowed once
// more when no hedges are left. If it is denied, b.remainder remains nil. The caller must hold mu.
func (b *Body) replaceFailedHedge() {
	off := b.progress.bytesRead.Load()
	if b.closed || b.hedgesLeft < 0 || b.nextAttempt > race.MaxHedges || !b.needsRemainder(off) {
		return
	}
	if req, _ := b.admitRequest(off); req != nil {
		go b.requestRemainder(req, b.remainder)
	}
}

// needsRemainder reports whether bytes after the offset off are missing and the caller still waits for them. It returns
// false while resumption is not enabled.
func (b *Body) needsRemainder(off int64) bool {
	return off < b.resp.ContentLength && b.requester.Enabled() && b.ctx.Err() == nil
}

// admitRequest asks the [Requester] to admit a request for the remainder, from the offset off on. If the request is
// admitted, it returns the request and sets b.remainder. Otherwise it returns nil, and later says whether the remainder
// may be requested later. The caller must hold mu.
func (b *Body) admitRequest(off int64) (req Request, later bool) {
	b.obstacle = ""
	req, later = b.requester.RequestRemainder(b.ctx, b.byteRange.rangeHeaderAfter(off), b.byteRange.validator, b.source.usesHedgeConns)
	if req == nil {
		return nil, later
	}
	b.remainder = &remainder{
		number: b.nextAttempt, offset: off, attempt: race.NewAttempt(b.ctx, b.nextAttempt), requestTime: time.Now(),
		decided: make(chan struct{}), released: make(chan struct{}),
	}
	b.nextAttempt++
	b.hedgesLeft--
	return req, false
}

// forbidRequests prevents further requests for the remainder. The caller must hold mu.
func (b *Body) forbidRequests() { b.hedgesLeft = -1 }

// scheduleRetry decides when the remainder is requested again after a request was denied. If later is true, it sets the
// timer for the next request, with a delay that doubles each time. If later is false, the remainder is not requested
// again. The caller must hold mu.
func (b *Body) scheduleRetry(later bool) {
	if !later {
		b.forbidRequests()
		return
	}
	b.retryDelay = max(2*b.retryDelay, b.stallTimeout)
	b.timer.Reset(b.retryDelay)
}

// errNotRemainder is the error of a response that does not contain the remainder of the body.
var errNotRemainder = errors.New("hedge: answer is not the rest of the body")

// requestRemainder sends the admitted request req for the remainder r. If the response arrives before the source
// continues, it becomes the source of the body.
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

// checkRemainder checks that resp contains the remainder of the body from the offset off, and waits for its first
// bytes. It returns errNotRemainder if resp is not the remainder, and [httpattempt.ErrFailure] if the body of resp
// fails.
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
		return errNotRemainder // the body ends too early
	}
	return nil
}

// handleRemainder decides whether the remainder r wins, after its request req has ended with resp and err. If the
// remainder wins, handleRemainder closes the original source when the reader no longer uses it. Otherwise it discards
// resp.
func (b *Body) handleRemainder(req Request, r *remainder, resp *http.Response, err error) {
	b.mu.Lock()
	how, loser := race.OutcomeOf(err), b.source
	switch {
	case r.isDecided:
		how = race.Lost
	case err == nil:
		r.source = bodySource{resp.Body, r.attempt, !loser.usesHedgeConns}
		r.recordDecision(true)
	default:
		b.remainder = nil
		b.forbidRequests()
		r.recordDecision(false)
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
