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

// maxBufferedBody is the most bytes of a failed response that are read before the caller reads.
const maxBufferedBody = 64 << 10

// BufferBody returns a copy of resp, the failed response of attempt a, for the time in which hedges run. Its body is read into
// memory and closed, so that other requests can use its connection, and a queue of the caller its slot. It returns false if the
// body is too large; if that shows later, release is called. Panicked is called if closing the body panics.
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

// A bodyBuffer is the body of a failed response. It is read ahead while hedges run.
type bodyBuffer struct {
	resp           *http.Response // as it came: its Trailer is written when the body is read to its end
	source         *BodyCloser
	callerResponse http.Response // response that the caller has

	stopFill       atomic.Bool   // the caller reads, or has closed the body: fillBuffer reads no more
	closedByCaller atomic.Bool   // the caller has closed it
	fillDone       chan struct{} // closed when fillBuffer has ended; then err is the reader's
	err            error         // came after beginning; nil: the source goes on

	mu        sync.Mutex // guards the fields below
	beginning []byte     // what was read
	delivered int        // how much of it the caller has
	filled    bool       // fillBuffer has ended
	closed    bool       // by the caller, or by fillBuffer
}

// fillBuffer reads the source until its end, to maxBufferedBody, or until the caller reads or closes the body. It closes a source that has ended.
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

// copyUnread copies bytes that were read ahead, and that the caller has not got yet, to p.
func (b *bodyBuffer) copyUnread(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.beginning[b.delivered:])
	b.delivered += n
	return n
}

// finishFill ends fillBuffer. A source that panics has ended.
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

// Read returns the bytes that were read ahead, and then reads from the source.
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

// Close closes the source, or has fillBuffer do so when its Read has returned.
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

// A BodyCloser closes a body that another goroutine may be reading. Some wrappers of net/http's bodies put their decoder into a
// pool in Close. If a Read still ran then, it would share the decoder with another body.
type BodyCloser struct {
	io.ReadCloser
	attempt  *race.Attempt // of the body; nil: it has no context of its own
	panicked func()        // called if Close panics

	once sync.Once
	err  error // of Close
}

// NewBodyCloser returns a BodyCloser for the body of attempt a, which may be nil.
func NewBodyCloser(body io.ReadCloser, a *race.Attempt, panicked func()) *BodyCloser {
	return &BodyCloser{ReadCloser: body, attempt: a, panicked: panicked}
}

// Close closes the body, once.
func (c *BodyCloser) Close() error {
	c.once.Do(func() { c.err = c.ReadCloser.Close() })
	return c.err
}

// maxReadWait is how long a Read that was cancelled may take.
const maxReadWait = time.Second

// CloseAfterRead cancels the attempt, so that a Read of its body returns. It closes the body when the channel left is closed, which
// reports that the Read has returned, or after maxReadWait.
func (c *BodyCloser) CloseAfterRead(left <-chan struct{}) {
	if c.attempt != nil {
		c.attempt.CancelAndDetach()
	}
	late := time.NewTimer(maxReadWait)
	defer late.Stop()
	select {
	case <-left:
	case <-late.C:
	}
	c.closeQuietly()
}

// closeQuietly closes the body. It ignores an error, and reports a panic to panicked.
func (c *BodyCloser) closeQuietly() {
	defer func() {
		if recover() != nil {
			c.panicked()
		}
	}()
	_ = c.Close()
}
