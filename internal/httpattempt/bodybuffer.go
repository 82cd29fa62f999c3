package httpattempt

import (
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// maxBufferedBody is the largest number of bytes of a failed response that are read before the caller reads.
const maxBufferedBody = 64 << 10

// BufferBody returns a copy of resp, the failed response of attempt a, whose body is read into memory while hedges run.
// When the body has ended, it is closed, so that other requests can use the connection.
//
// It returns false if the body is known to be too large. If that shows later, BufferBody calls release. It calls
// panicked if closing the body panics.
func BufferBody(resp *http.Response, a *race.Attempt, release, panicked func()) (*http.Response, bool) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		return resp, true
	case resp.ContentLength > maxBufferedBody || resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, false
	}
	b := &bodyBuffer{resp: resp, source: NewBodyCloser(resp.Body, a, panicked), callerResponse: *resp, fillDone: make(chan struct{})}
	b.callerResponse.Body, b.callerResponse.Trailer = b, maps.Clone(resp.Trailer)
	go b.fillBuffer(release)
	return &b.callerResponse, true
}

// A bodyBuffer is the body of a failed response. A goroutine reads it into memory while hedges run.
type bodyBuffer struct {
	resp *http.Response // the original response; its Trailer is set when the body has ended
	// the body of resp
	source         *BodyCloser
	callerResponse http.Response // copy of resp for the caller

	stopFill       atomic.Bool   // tells fillBuffer to stop, because the caller reads or has closed the body
	closedByCaller atomic.Bool   // the caller has called Close
	fillDone       chan struct{} // closed when fillBuffer has returned; then the reader owns err
	err            error         // error that follows beginning; nil: the source has more

	mu        sync.Mutex // guards the fields below
	beginning []byte     // bytes read by fillBuffer
	delivered int        // number of these bytes that the caller has got
	filled    bool       // fillBuffer has returned
	closed    bool       // the source is closed, or being closed
}

// fillBuffer reads the source into memory. It stops at the end of the source, after maxBufferedBody bytes, or when the
// caller reads or closes the body. At the end of the source, it closes the source.
func (b *bodyBuffer) fillBuffer(release func()) {
	defer b.finishFill()
	buf := make([]byte, 0, min(max(b.resp.ContentLength, 0), maxBufferedBody)+512)
	b.err = io.ErrUnexpectedEOF // unless Read returns
	for !b.stopFill.Load() {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := b.source.Read(buf[len(buf):min(cap(buf), maxBufferedBody+1)])
		buf = buf[:len(buf)+n]
		b.mu.Lock()
		b.beginning = buf
		b.mu.Unlock()
		if err != nil {
			b.err = err
			return
		}
		if len(buf) > maxBufferedBody {
			b.err = nil
			release()
			return
		}
	}
	b.err = nil
}

// copyUnread copies buffered bytes that the caller has not got yet to p. It returns the number of copied bytes.
func (b *bodyBuffer) copyUnread(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.beginning[b.delivered:])
	b.delivered += n
	return n
}

// finishFill records that fillBuffer has returned. It closes the source if the source has ended or the caller has
// closed the body. It treats a panic of the source as its end.
func (b *bodyBuffer) finishFill() {
	if recover() != nil {
		b.source.panicked()
	}
	b.mu.Lock()
	b.filled = true
	ended := b.closed || b.err != nil
	b.closed = ended
	b.mu.Unlock()
	if ended {
		b.source.closeQuietly()
	}
	close(b.fillDone)
}

// Read returns the buffered bytes first, and then reads from the source.
func (b *bodyBuffer) Read(p []byte) (int, error) {
	b.stopFill.Store(true)
	if b.closedByCaller.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if n := b.copyUnread(p); n > 0 {
		return n, nil // without the rest, which may take long
	}
	<-b.fillDone
	if b.closedByCaller.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if n := b.copyUnread(p); n > 0 {
		return n, nil
	}
	err, n := b.err, 0
	if err == nil {
		n, err = b.source.Read(p)
	}
	if err == io.EOF && b.resp.Trailer != nil {
		b.callerResponse.Trailer = b.resp.Trailer
	}
	return n, err
}

// Close closes the source, at once if fillBuffer has returned. Otherwise a goroutine closes it when the pending Read of
// fillBuffer has returned.
func (b *bodyBuffer) Close() error {
	b.stopFill.Store(true)
	b.closedByCaller.Store(true)
	b.mu.Lock()
	closed, filled := b.closed, b.filled
	b.closed = true
	b.mu.Unlock()
	switch {
	case closed:
		return nil
	case filled:
		return b.source.Close()
	}
	go b.source.CloseAfterRead(b.fillDone)
	return nil
}

// A BodyCloser closes a body while another goroutine may still read from it. It waits for the pending Read: some
// wrappers put their decoder into a pool in Close, and a Read that still runs would share the decoder with another
// body.
type BodyCloser struct {
	io.ReadCloser
	attempt  *race.Attempt // attempt to cancel before closing; nil: there is none
	panicked func()        // called if Close panics

	once sync.Once
	err  error // result of the first Close
}

// NewBodyCloser returns a BodyCloser for the body of attempt a. A nil a means that no attempt is to be cancelled. The
// function panicked is called if CloseAfterRead recovers a panic of Close.
func NewBodyCloser(body io.ReadCloser, a *race.Attempt, panicked func()) *BodyCloser {
	return &BodyCloser{ReadCloser: body, attempt: a, panicked: panicked}
}

// Close closes the body. Later calls return the result of the first call.
func (c *BodyCloser) Close() error {
	c.once.Do(func() { c.err = c.ReadCloser.Close() })
	return c.err
}

// maxReadWait is the time that CloseAfterRead waits for a pending Read.
const maxReadWait = time.Second

// CloseAfterRead cancels the attempt, so that a pending Read returns. It closes the body when the channel readDone is
// closed, which signals that the Read has returned, or after maxReadWait.
func (c *BodyCloser) CloseAfterRead(readDone <-chan struct{}) {
	if c.attempt != nil {
		c.attempt.CancelAndDetach()
	}
	late := time.NewTimer(maxReadWait)
	defer late.Stop()
	select {
	case <-readDone:
	case <-late.C:
	}
	c.closeQuietly()
}

// closeQuietly closes the body and ignores the error. It calls panicked if Close panics.
func (c *BodyCloser) closeQuietly() {
	defer func() {
		if recover() != nil {
			c.panicked()
		}
	}()
	_ = c.Close()
}
