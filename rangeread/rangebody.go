package rangeread

import (
	"context"
	"io"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A rangeBody returns the bytes of one range in order. It reads one response at a time, and switches to the response of
// a hedge if that delivers the next byte first. It is not safe for concurrent use.
type rangeBody struct {
	request     *rangeRequest
	caller      context.Context
	hedged      bool
	offset      int64  // offset in the object of the next byte
	end         int64  // offset of the end of the range, or of the object
	start       int64  // offset of the first byte of the range
	opened      int64  // offset at which the last response was opened
	responses   int    // number of opened responses
	destination []byte // memory for the whole range; nil: each chunk is only valid until the next one

	source      *response  // response that is being read; nil: none is open
	sourceErr   error      // error of the failed source, while a request for the remainder is in progress
	remainder   *remainder // hedge for the missing bytes; nil: there is none
	hedgesLeft  int        // number of further hedges for the remainder
	nextAttempt int        // number of the next attempt

	began   time.Time     // when the range was requested
	usual   time.Duration // 99th percentile of the time to the first byte; 0: unknown
	stall   time.Duration // pause after which a body has stalled; 0: unknown, or the range is not hedged
	retry   time.Duration // time after which a denied hedge is tried again
	longest time.Duration // longest pause so far
	timer   *time.Timer
}

// newRangeBody returns a body of the n bytes at offset off, where n is at least 1. It sends no request yet. The caller
// closes it.
func newRangeBody(ctx context.Context, r *Reader, off, n int64) *rangeBody {
	refused := policy.Eligibility{SwitchedOff: r.store.hedgingDisabled}.Reason(race.OverridesFrom(ctx))
	f := &rangeBody{
		request: &rangeRequest{store: r.store, fetch: r.fetch, version: &r.version, key: r.store.keyForLength(n)},
		caller:  ctx, hedged: refused == policy.None, offset: off, start: off, end: off + n,
	}
	t := f.request
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.stopOnClose = context.AfterFunc(r.closed, func() { t.cancel(errClosed) })
	f.limitToSize()
	t.addUser()
	r.store.ranges.Add(1)
	r.store.asked.Add(f.end - f.offset)
	return f
}

// limitToSize moves the end of the range to the end of the object, if its size is known and smaller.
func (f *rangeBody) limitToSize() {
	if size, known := f.request.version.knownSize(); known {
		f.end = max(min(f.end, size), f.offset)
	}
}

// nextBytes returns the next bytes, which are valid until the next call. It returns io.EOF at the end of the range or
// of the object.
func (f *rangeBody) nextBytes() ([]byte, error) {
	for f.offset < f.end {
		if f.source == nil && f.sourceErr == nil {
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

// openResponse opens the first response. It opens another one if the previous response was shorter than the range
// according to its Info.
func (f *rangeBody) openResponse() error {
	if f.responses > 0 && f.opened == f.offset {
		return f.handleObjectEnd() // the last response had no bytes
	}
	if f.responses == 0 {
		f.began = time.Now()
	}
	s, started, err := raceFirstByte(f.caller, f.request, f.offset, f.end, f.hedged)
	switch {
	case err == io.EOF:
		return f.handleObjectEnd()
	case err != nil:
		return err
	}
	if f.responses == 0 && f.hedged {
		f.hedgesLeft, f.nextAttempt, f.stall = maxHedges, started, f.request.key.StallThreshold()
		if p := f.request.key.Schedule(); p != nil {
			f.usual = p.UsualLatency
		}
	}
	f.responses, f.opened = f.responses+1, f.offset
	if err := f.request.version.adoptInfo(s.info); err != nil {
		s.attempt.Release()
		go s.closeBody() // which may take long
		return err
	}
	f.switchTo(s)
	return nil
}

// handleObjectEnd ends the range at the current offset, because the store has no further bytes. It returns
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

// switchTo makes the response s the source, and starts to read it.
func (f *rangeBody) switchTo(s *response) {
	f.limitToSize()
	s.chunks = make(chan chunk)
	s.buffer.destination, s.buffer.from = f.destination, f.start
	f.source, f.sourceErr, f.retry = s, nil, 0
	go s.deliverChunks()
}

// awaitChunk waits for the next chunk of the source, and sends a hedge for the remainder if the source stalls. It may
// return no bytes and a nil error; call it again.
func (f *rangeBody) awaitChunk() ([]byte, error) {
	var pieces chan chunk
	if f.source != nil {
		pieces = f.source.chunks
	}
	var answer chan openResult
	if f.remainder != nil {
		answer = f.remainder.answer
	}
	since := time.Now()
	select {
	case p := <-pieces:
		f.longest = max(f.longest, time.Since(since))
		return f.takeChunk(p), f.handleSourceEnd(p.err)
	case a := <-answer:
		return nil, f.handleRemainder(a)
	case <-f.stallTimer():
		f.longest = max(f.longest, time.Since(since))
		return nil, f.hedgeOrFail()
	case <-f.request.ctx.Done():
		return nil, f.request.ctx.Err()
	}
}

// takeChunk returns the bytes of a chunk of the source. It cancels the hedge for the remainder, because the source has
// not stalled.
func (f *rangeBody) takeChunk(p chunk) []byte {
	if len(p.bytes) == 0 {
		return nil
	}
	f.cancelRemainder()
	f.retry = 0
	b := f.copyToDestination(p.bytes[:min(int64(len(p.bytes)), f.end-f.offset)])
	f.offset += int64(len(b))
	f.request.returnedBytes.Add(int64(len(b)))
	return b
}

// copyToDestination returns b, or its copy in the destination if there is one.
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

// replaceDestination moves the destination to new memory, because a Read of a cancelled response may still write to the
// old one.
func (f *rangeBody) replaceDestination() {
	if f.destination == nil {
		return
	}
	place := make([]byte, cap(f.destination))[:len(f.destination)]
	copy(place, f.destination[:f.offset-f.start])
	f.destination = place
}

// handleSourceEnd handles the error of a chunk. If the source has failed, it sends a hedge for the remainder. A nil
// error is ignored.
func (f *rangeBody) handleSourceEnd(err error) error {
	if err == nil {
		return nil
	}
	f.source = nil
	if err == io.EOF || f.offset >= f.end {
		return nil
	}
	f.sourceErr = err
	if f.remainder == nil {
		return f.hedgeOrFail()
	}
	return nil
}

// hedgeOrFail sends a hedge for the missing bytes, or sets the time of the next try. If no hedge is in flight and the
// source has failed, it returns the error of the source.
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
			f.retry = max(2*f.retry, f.stall)
		default:
			f.hedgesLeft = 0
		}
	}
	if f.sourceErr != nil {
		f.cancelRemainder()
		return f.sourceErr
	}
	return nil
}

// handleRemainder handles the result of the hedge for the remainder: it makes the response the source. If the hedge has
// failed, the source continues alone, or its error is returned.
func (f *rangeBody) handleRemainder(a openResult) error {
	if a.err == nil {
		if a.err = f.request.version.adoptInfo(a.stream.info); a.err != nil {
			go a.stream.closeBody() // which may take long
		}
	}
	if a.err != nil { // the source goes on alone
		f.cancelRemainder()
		f.hedgesLeft = 0
		return f.sourceErr
	}
	if f.source != nil {
		f.source.attempt.CancelAndDetach()
		f.replaceDestination()
	}
	f.remainder.recordWin()
	f.remainder = nil
	f.opened = f.offset
	f.switchTo(a.stream)
	return nil
}

// cancelRemainder cancels the hedge for the remainder, if there is one.
func (f *rangeBody) cancelRemainder() {
	if f.remainder != nil {
		f.remainder.cancelRequest()
		f.remainder = nil
	}
}

// stallTimer returns a channel that receives the time when hedgeOrFail must be called; nil: there is no such time.
func (f *rangeBody) stallTimer() <-chan time.Time {
	var d time.Duration
	switch {
	case f.sourceErr != nil:
		d = race.BoundHedgeTimeout(f.usual, time.Since(f.began)) - time.Since(f.remainder.asked)
	case f.remainder != nil || f.hedgesLeft == 0 || f.stall == 0:
		return nil
	default:
		d = max(f.stall, f.retry)
	}
	if f.timer == nil {
		f.timer = time.NewTimer(d)
	} else {
		f.timer.Reset(d)
	}
	return f.timer.C
}

// close cancels all attempts, and records the longest pause of the range.
func (f *rangeBody) close() {
	f.cancelRemainder()
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.source != nil {
		f.source.attempt.CancelAndDetach()
	}
	if f.responses > 0 && (f.offset == f.end || f.stall > 0 && f.longest > f.stall) {
		f.request.key.RecordPause(f.longest)
	}
	f.request.store.bytes.EarnN(f.offset - f.start)
	f.request.removeUser()
}
