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

// maxBufferedBody is the largest number of bytes of a failed response that are buffered while hedges run.
const maxBufferedBody = 64 << 10

// BufferBody reads the body of resp, the failed response of attempt a, into memory while hedges run. The attempt's
// connection can then serve other requests, although the caller may still get the response.
//
// It returns a copy of resp whose body returns the buffered bytes first, and closes the original body when it has been
// read. The result is false if the body is known to be too large to buffer; then resp is returned unchanged.
//
// If the body turns out to be too large later, BufferBody calls release, which ends the delay of the failure, so that
// the caller gets the response. It calls panicked if the original body panics.
func BufferBody(resp *http.Response, a *race.Attempt, release, panicked func()) (*http.Response, bool) {
	switch {
	case resp == nil || !hasBody(resp):
		return resp, true
	case IsTooLargeToBuffer(resp) || resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, false
	}
	b := &bodyBuffer{resp: resp, source: NewBodyCloser(resp.Body, a, panicked), callerResponse: *resp, fillDone: make(chan struct{})}
	b.callerResponse.Body, b.callerResponse.Trailer = b, maps.Clone(resp.Trailer)
	go b.fillBuffer(release)
	return &b.callerResponse, true
}

// IsTooLargeToBuffer reports whether the body of resp is known to be too large for [BufferBody]. It is false if the length is not
// known.
func IsTooLargeToBuffer(resp *http.Response) bool {
	return hasBody(resp) && resp.ContentLength > maxBufferedBody
}

// hasBody reports whether resp may have a body with content. A response to HEAD has none, although it states a length.
func hasBody(resp *http.Response) bool {
	return resp.Body != nil && resp.Body != http.NoBody && (resp.Request == nil || resp.Request.Method != http.MethodHead)
}

// A bodyBuffer is the body of a failed response that the caller may get. A goroutine reads the original body into
// memory while hedges run. The caller may read and close the bodyBuffer concurrently.
type bodyBuffer struct {
	resp *http.Response // the original response; net/http sets its Trailer when the body has ended
	// the original body
	source         *BodyCloser
	callerResponse http.Response // copy of resp for the caller, with this bodyBuffer as its body

	stopFill       atomic.Bool   // makes fillBuffer stop, because the caller reads or has closed the body
	closedByCaller atomic.Bool   // the caller has called Close
	fillDone       chan struct{} // closed when fillBuffer has returned; err must only be read after that
	err            error         // error that follows the buffered bytes; nil if the source has more bytes

	mu        sync.Mutex // guards the fields below
	beginning []byte     // bytes read by fillBuffer
	delivered int        // number of bytes of beginning that the caller has read
	filled    bool       // fillBuffer has returned
	closed    bool       // the source is closed or about to be closed
}

// fillBuffer reads the original body into memory, and closes it at its end. It stops early when the caller reads or
// closes the bodyBuffer. If the body has more than maxBufferedBody bytes, it stops and calls release.
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

// copyUnread copies buffered bytes that the caller has not read yet to p. It returns the number of copied bytes.
func (b *bodyBuffer) copyUnread(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.beginning[b.delivered:])
	b.delivered += n
	return n
}

// finishFill ends fillBuffer, which defers it. It closes the original body if that body has ended or the caller has
// closed the bodyBuffer. If Read of the original body has panicked, finishFill recovers the panic and treats it as the
// end of the body.
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

// Read returns the buffered bytes first, and then reads from the original body.
func (b *bodyBuffer) Read(p []byte) (int, error) {
	b.stopFill.Store(true)
	if b.closedByCaller.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if n := b.copyUnread(p); n > 0 {
		return n, nil // do not wait for further bytes, which may take long
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

// Close closes the original body. If fillBuffer is still reading from that body, a goroutine closes it after the
// pending Read has returned. In this case Close returns nil at once.
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

// A BodyCloser closes a body while another goroutine may be reading from it. It waits until the pending Read has
// returned.
//
// Otherwise a body that decodes data could put its decoder into a pool while Read still uses the decoder. A later body
// would then share the decoder.
type BodyCloser struct {
	io.ReadCloser
	attempt  *race.Attempt // attempt to cancel before the body is closed; nil if none is to be cancelled
	panicked func()        // called if Close panics

	once sync.Once // makes Close call the wrapped Close only once
	err  error     // result of the first Close
}

// NewBodyCloser returns a BodyCloser for body, the response body of attempt a. CloseAfterRead cancels a before it
// closes the body; a nil a means that no attempt is cancelled. The function panicked is called after a panic of the
// body's Close method has been recovered.
func NewBodyCloser(body io.ReadCloser, a *race.Attempt, panicked func()) *BodyCloser {
	return &BodyCloser{ReadCloser: body, attempt: a, panicked: panicked}
}

// Close closes the body. Later calls do nothing and return the result of the first call.
func (c *BodyCloser) Close() error {
	c.once.Do(func() { c.err = c.ReadCloser.Close() })
	return c.err
}

// maxReadWait is the longest time that CloseAfterRead waits for a pending Read.
const maxReadWait = time.Second

// CloseAfterRead closes the body after a pending Read has returned. It first cancels the attempt, so that the Read
// returns soon. The caller closes the channel readDone when the Read has returned. CloseAfterRead waits for that for at
// most one second.
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

// closeQuietly closes the body and ignores the error. If Close panics, closeQuietly recovers the panic and calls
// panicked.
func (c *BodyCloser) closeQuietly() {
	defer func() {
		if recover() != nil {
			c.panicked()
		}
	}()
	_ = c.Close()
}
