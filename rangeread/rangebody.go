package rangeread

import (
	"context"
	"io"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A rangeBody delivers the bytes of one range in order. It reads one response at a time, and sends hedges. If a hedge
// delivers the next byte first, the rangeBody continues with the response to the hedge. It is not safe for concurrent
// use.
type rangeBody struct {
	request       *rangeRequest
	callerContext context.Context // context of the caller
	mayHedge      bool            // whether hedges may be sent
	offset        int64           // offset in the object of the next byte
	end           int64           // offset at which the range ends, or the object if it is shorter
	start         int64           // offset of the first byte of the range
	responseStart int64           // offset at which the last opened response starts
	responses     int             // number of responses that were opened
	destination   []byte          // memory into which the whole range is read; nil: each chunk is only valid until the next one

	currentResponse *response       // response that is being read; nil: there is none
	responseErr     error           // error of the failed response, while a hedge for the missing bytes is in flight
	remainder       *remainderHedge // hedge for the missing bytes that is in flight; nil: there is none
	hedgesLeft      int             // number of further hedges for missing bytes that may be sent
	nextAttempt     int             // number of the next attempt

	requestedAt    time.Time     // when the range was requested
	usualLatency   time.Duration // 99th percentile of the time to the first byte; 0: unknown
	stallThreshold time.Duration // pause after which a body has stalled; 0: unknown, or the range is not hedged
	retryDelay     time.Duration // time after which a hedge is requested again if it was denied; 0: none was denied
	longestPause   time.Duration // longest pause of the body so far
	timer          *time.Timer   // timer of stallTimer; nil: not yet needed
}

// newRangeBody returns a rangeBody for the n bytes at offset off, where n must be at least 1. It sends no request yet.
// The caller must close it.
func newRangeBody(ctx context.Context, r *Reader, off, n int64) *rangeBody {
	refused := policy.Eligibility{SwitchedOff: r.store.hedgingDisabled}.Reason(race.OverridesFrom(ctx))
	f := &rangeBody{
		request:       &rangeRequest{store: r.store, fetch: r.fetch, version: &r.version, key: r.store.keyForLength(n)},
		callerContext: ctx, mayHedge: refused == policy.None, offset: off, start: off, end: off + n,
	}
	t := f.request
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.stopOnClose = context.AfterFunc(r.closed, func() { t.cancel(errClosed) })
	f.limitToSize()
	t.addUser()
	r.store.ranges.Add(1)
	r.store.bytesAsked.Add(f.end - f.offset)
	return f
}

// limitToSize shortens the range to the end of the object, if the size of the object is known.
func (f *rangeBody) limitToSize() {
	if size, known := f.request.version.knownSize(); known {
		f.end = max(min(f.end, size), f.offset)
	}
}

// nextBytes waits for the next bytes of the range and returns them. They are valid until the next call. It returns
// io.EOF at the end of the range or of the object.
func (f *rangeBody) nextBytes() ([]byte, error) {
	for f.offset < f.end {
		if f.currentResponse == nil && f.responseErr == nil {
			if err := f.openResponse(); err != nil {
				return nil, err
			}
			continue
		}
		b, err := f.awaitChunk()
		if len(b) > 0 || err != nil {
			return b, err
		}
	}
	return nil, io.EOF
}

// openResponse requests the bytes from the current offset on, with hedges if the first byte is late, and starts to read
// the response. It is called again if a response was shorter than the range according to its Info. It returns an error
// if no response can be read.
func (f *rangeBody) openResponse() error {
	if f.responses > 0 && f.responseStart == f.offset {
		return f.handleObjectEnd() // the last response had no bytes
	}
	if f.responses == 0 {
		f.requestedAt = time.Now()
	}
	s, started, err := raceFirstByte(f.callerContext, f.request, f.offset, f.end, f.mayHedge)
	switch {
	case err == io.EOF:
		return f.handleObjectEnd()
	case err != nil:
		return err
	}
	if f.responses == 0 && f.mayHedge {
		f.hedgesLeft, f.nextAttempt, f.stallThreshold = maxHedges, started, f.request.key.StallThreshold()
		if p := f.request.key.Schedule(); p != nil {
			f.usualLatency = p.UsualLatency
		}
	}
	f.responses, f.responseStart = f.responses+1, f.offset
	if err := f.request.version.adoptInfo(s.info); err != nil {
		s.attempt.Release()
		go s.closeBody() // which may take long
		return err
	}
	f.switchTo(s)
	return nil
}

// handleObjectEnd ends the range at the current offset, because the server has no bytes at this offset. It returns
// io.ErrUnexpectedEOF if the object is known to be larger.
func (f *rangeBody) handleObjectEnd() error {
	size, known := f.request.version.knownSize()
	switch {
	case known && f.offset < size:
		return io.ErrUnexpectedEOF
	case !known && (f.offset > f.start || f.offset == 0): // all bytes before were read
		f.request.version.recordEnd(f.offset)
	}
	f.end = f.offset
	return nil
}

// switchTo starts a goroutine that reads the response s. From now on, the next bytes of the range come from s in place
// of the previous response.
func (f *rangeBody) switchTo(s *response) {
	f.limitToSize()
	s.chunks = make(chan chunk)
	s.buffer.destination, s.buffer.from = f.destination, f.start
	f.currentResponse, f.responseErr, f.retryDelay = s, nil, 0
	go s.deliverChunks()
}

// awaitChunk waits for the next chunk of the response that is being read, and returns its bytes. If the response
// stalls, awaitChunk sends a hedge for the missing bytes. It may return no bytes and a nil error; the caller then calls
// it again.
func (f *rangeBody) awaitChunk() ([]byte, error) {
	var pieces chan chunk
	if f.currentResponse != nil {
		pieces = f.currentResponse.chunks
	}
	var answer chan openResult
	if f.remainder != nil {
		answer = f.remainder.resultChannel
	}
	since := time.Now()
	select {
	case p := <-pieces:
		f.longestPause = max(f.longestPause, time.Since(since))
		return f.takeChunk(p), f.handleResponseEnd(p.err)
	case a := <-answer:
		return nil, f.handleRemainder(a)
	case <-f.stallTimer():
		f.longestPause = max(f.longestPause, time.Since(since))
		return nil, f.hedgeOrFail()
	case <-f.request.ctx.Done():
		return nil, f.request.ctx.Err()
	}
}

// takeChunk returns the bytes of the chunk p, which the current response has delivered, and advances the offset. It
// cancels the hedge for the missing bytes, because the response has not stalled.
func (f *rangeBody) takeChunk(p chunk) []byte {
	if len(p.bytes) == 0 {
		return nil
	}
	f.cancelRemainder()
	f.retryDelay = 0
	b := f.copyToDestination(p.bytes[:min(int64(len(p.bytes)), f.end-f.offset)])
	f.offset += int64(len(b))
	f.request.returnedBytes.Add(int64(len(b)))
	return b
}

// copyToDestination returns b itself if the rangeBody has no destination. Otherwise it copies b to the destination,
// unless it is already there, and returns the copy.
func (f *rangeBody) copyToDestination(b []byte) []byte {
	if f.destination == nil {
		return b
	}
	to := f.destination[f.offset-f.start:][:len(b)]
	if len(b) > 0 && &to[0] != &b[0] { // the first chunk of a response
		copy(to, b)
	}
	return to
}

// replaceDestination copies the destination to new memory. The old memory cannot be used any more, because a Read of a
// cancelled response may still write to it.
func (f *rangeBody) replaceDestination() {
	if f.destination == nil {
		return
	}
	place := make([]byte, cap(f.destination))[:len(f.destination)]
	copy(place, f.destination[:f.offset-f.start])
	f.destination = place
}

// handleResponseEnd handles err, the error of the chunk that was received last from the current response. If err is nil,
// more chunks follow, and nothing is done. If the response has failed, handleResponseEnd sends a hedge for the missing
// bytes. It returns err if no hedge can be sent.
func (f *rangeBody) handleResponseEnd(err error) error {
	if err == nil {
		return nil
	}
	f.currentResponse = nil
	if err == io.EOF || f.offset >= f.end {
		return nil
	}
	f.responseErr = err
	if f.remainder == nil {
		return f.hedgeOrFail()
	}
	return nil
}

// hedgeOrFail sends a hedge for the missing bytes, because the response that is being read has stalled or failed. If
// the hedge is denied for now, hedgeOrFail sets the time after which it is requested again. If the response has failed
// and no hedge was sent, it returns the error of the response.
func (f *rangeBody) hedgeOrFail() error {
	if f.remainder == nil && f.hedgesLeft > 0 {
		r, later := requestRemainder(f.request, f.offset, f.end, f.nextAttempt)
		switch {
		case r != nil:
			f.remainder = r
			f.nextAttempt++
			f.hedgesLeft--
			return nil
		case later:
			f.retryDelay = max(2*f.retryDelay, f.stallThreshold)
		default:
			f.hedgesLeft = 0
		}
	}
	if f.responseErr != nil {
		f.cancelRemainder()
		return f.responseErr
	}
	return nil
}

// handleRemainder handles the result a of the hedge for the missing bytes. If the hedge succeeded, reading continues
// with its response, and the previous response is cancelled. If the hedge failed, the previous response continues
// alone. If that has failed too, handleRemainder returns its error.
func (f *rangeBody) handleRemainder(a openResult) error {
	if a.err == nil {
		if a.err = f.request.version.adoptInfo(a.response.info); a.err != nil {
			go a.response.closeBody() // which may take long
		}
	}
	if a.err != nil { // the source goes on alone
		f.cancelRemainder()
		f.hedgesLeft = 0
		return f.responseErr
	}
	if f.currentResponse != nil {
		f.currentResponse.attempt.CancelAndDetach()
		f.replaceDestination()
	}
	f.remainder.recordWin()
	f.remainder = nil
	f.responseStart = f.offset
	f.switchTo(a.response)
	return nil
}

// cancelRemainder cancels the hedge for the missing bytes, if there is one.
func (f *rangeBody) cancelRemainder() {
	if f.remainder != nil {
		f.remainder.cancelRequest()
		f.remainder = nil
	}
}

// stallTimer returns a channel that receives when the caller must call hedgeOrFail, because the current response has
// stalled. If the response has failed, the channel receives when its hedge has taken too long. The channel is nil if
// there is no time limit.
func (f *rangeBody) stallTimer() <-chan time.Time {
	var d time.Duration
	switch {
	case f.responseErr != nil:
		d = race.HedgeTimeoutAfterFailure(f.usualLatency, time.Since(f.requestedAt)) - time.Since(f.remainder.sentAt)
	case f.remainder != nil || f.hedgesLeft == 0 || f.stallThreshold == 0:
		return nil
	default:
		d = max(f.stallThreshold, f.retryDelay)
	}
	if f.timer == nil {
		f.timer = time.NewTimer(d)
	} else {
		f.timer.Reset(d)
	}
	return f.timer.C
}

// close cancels all attempts, and records the longest pause of the range, from which stalls of later ranges are
// recognised. It also credits the delivered bytes to the byte budget for hedges.
func (f *rangeBody) close() {
	f.cancelRemainder()
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.currentResponse != nil {
		f.currentResponse.attempt.CancelAndDetach()
	}
	if f.responses > 0 && (f.offset == f.end || f.stallThreshold > 0 && f.longestPause > f.stallThreshold) {
		f.request.key.RecordPause(f.longestPause)
	}
	f.request.store.byteBudget.DepositN(f.offset - f.start)
	f.request.removeUser()
}
