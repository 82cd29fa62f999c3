package rangeread

import (
	"context"
	"io"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A rangeBody is the bytes of one range in order, from whichever attempt has them first. One goroutine at a time uses it.
type rangeBody struct {
	request     *rangeRequest
	caller      context.Context
	hedged      bool
	offset      int64  // the next byte
	end         int64  // no byte is wanted from there on
	start       int64  // the first byte of the range
	opened      int64  // where the last answer began, if there was one
	responses   int    // answers that were opened
	destination []byte // where all bytes of the range are read to; nil: each piece is where it is until the next

	source      *response  // whose pieces are read; nil: there is none now
	sourceErr   error      // of the source, while what is missing may still come
	remainder   *remainder // what is missing is asked for; nil: it is not
	hedgesLeft  int        // how often it may still be asked for
	nextAttempt int        // of the next attempt

	began   time.Time     // when the range was asked for
	usual   time.Duration // in which a first byte usually comes; 0: not known
	stall   time.Duration // a pause of so long is a stall; 0: not known, or nothing is hedged
	retry   time.Duration // until a hedge that was denied is asked for again
	longest time.Duration // pause
	timer   *time.Timer
}

// newFlow returns the flow of n bytes from off on; n is at least 1. Its owner closes it.
func newFlow(ctx context.Context, r *Reader, off, n int64) *rangeBody {
	refused := policy.Eligibility{SwitchedOff: r.store.off}.Reason(race.OverridesFrom(ctx))
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

// limitToSize takes note of the size of the object.
func (f *rangeBody) limitToSize() {
	if size, known := f.request.version.knownSize(); known {
		f.end = max(min(f.end, size), f.offset)
	}
}

// nextBytes returns the next bytes, valid until it is called again, and io.EOF at the end of the range or of the object.
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

// open opens the source, or another one if that has ended too soon, but as it has promised.
func (f *rangeBody) openResponse() error {
	if f.responses > 0 && f.opened == f.offset {
		return f.handleObjectEnd() // an answer has brought nothing
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
		f.hedgesLeft, f.nextAttempt, f.stall = maxHedges, started, f.request.key.Stall()
		if p := f.request.key.Schedule(); p != nil {
			f.usual = p.Usual
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

// handleObjectEnd says that the store has nothing from here on.
func (f *rangeBody) handleObjectEnd() error {
	size, known := f.request.version.knownSize()
	switch {
	case known && f.offset < size:
		return io.ErrUnexpectedEOF
	case !known && (f.offset > f.start || f.offset == 0): // all before is there
		f.request.version.recordEnd(f.offset)
	}
	f.end = f.offset
	return nil
}

// switchTo goes on with s.
func (f *rangeBody) switchTo(s *response) {
	f.limitToSize()
	s.chunks = make(chan chunk)
	s.buffer.destination, s.buffer.from = f.destination, f.start
	f.source, f.sourceErr, f.retry = s, nil, 0
	go s.deliverChunks()
}

// awaitChunk waits for the next piece, and asks for what is missing if that takes too long. It may return nothing.
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

// take takes a piece. The source goes on, so nothing is missing.
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

// copyToDestination returns bytes where they belong, if they have a place.
func (f *rangeBody) copyToDestination(b []byte) []byte {
	if f.destination == nil {
		return b
	}
	to := f.destination[f.offset-f.start:][:len(b)]
	if len(b) > 0 && &to[0] != &b[0] { // the first of an answer
		copy(to, b)
	}
	return to
}

// replaceDestination gives the range another place: a Read that nobody waits for may write to this one.
func (f *rangeBody) replaceDestination() {
	if f.destination == nil {
		return
	}
	place := make([]byte, cap(f.destination))[:len(f.destination)]
	copy(place, f.destination[:f.offset-f.start])
	f.destination = place
}

// handleSourceEnd takes note of why the source has ended, nil if it has not.
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

// hedgeOrFail asks for what is missing. It returns why the flow has failed, if it has.
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

// handleRemainder takes the answer to the request for what is missing.
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
		f.source.attempt.Lose()
		f.replaceDestination()
	}
	f.remainder.recordWin()
	f.remainder = nil
	f.opened = f.offset
	f.switchTo(a.stream)
	return nil
}

// cancelRemainder ends the request for what is missing, if there is one.
func (f *rangeBody) cancelRemainder() {
	if f.remainder != nil {
		f.remainder.cancelRequest()
		f.remainder = nil
	}
}

// stallTimer returns the channel of the timer until late is to be called; nil: it is not.
func (f *rangeBody) stallTimer() <-chan time.Time {
	var d time.Duration
	switch {
	case f.sourceErr != nil:
		d = race.Bound(f.usual, time.Since(f.began)) - time.Since(f.remainder.asked)
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

// close ends all attempts, and learns how the range paused.
func (f *rangeBody) close() {
	f.cancelRemainder()
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.source != nil {
		f.source.attempt.Lose()
	}
	if f.responses > 0 && (f.offset == f.end || f.stall > 0 && f.longest > f.stall) {
		f.request.key.Paused(f.longest)
	}
	f.request.store.bytes.EarnN(f.offset - f.start)
	f.request.removeUser()
}
