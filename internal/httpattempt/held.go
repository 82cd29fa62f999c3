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

// maxHeld is how much of a failed response is read while it is held.
const maxHeld = 64 << 10

// Hold returns a copy of resp, the response of attempt a, that can be held: its body is read into
// memory meanwhile and closed, so that others have its connection, and the place that it has in a
// queue of the caller's. It reports false if there is too much of it; if that shows later, enough is
// called. Panicked is called if closing the body panics.
func Hold(resp *http.Response, a *race.Attempt, enough, panicked func()) (*http.Response, bool) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		return resp, true
	case resp.ContentLength > maxHeld || resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, false
	}
	h := &held{resp: resp, source: NewCloser(resp.Body, a, panicked), shown: *resp, read: make(chan struct{})}
	h.shown.Body, h.shown.Trailer = h, maps.Clone(resp.Trailer)
	go h.fill(enough)
	return &h.shown, true
}

// held is the body of a response that is held.
type held struct {
	resp   *http.Response // as it came: its Trailer is written when the body is read to its end
	source *Closer
	shown  http.Response // what the caller has

	stop atomic.Bool   // the caller reads, or has closed the body: fill reads no more
	gone atomic.Bool   // the caller has closed it
	read chan struct{} // closed when fill has ended; then err is the reader's
	err  error         // came after beginning; nil: the source goes on

	mu        sync.Mutex // guards the fields below
	beginning []byte     // what was read
	given     int        // how much of it the caller has
	filled    bool       // fill has ended
	closed    bool       // by the caller, or by fill
}

// fill reads the source until its end, to maxHeld, or until the caller wants it. At the end, it closes it.
func (h *held) fill(enough func()) {
	defer h.leave()
	buf := make([]byte, 0, min(max(h.resp.ContentLength, 0), maxHeld)+512)
	h.err = io.ErrUnexpectedEOF // unless Read returns
	for !h.stop.Load() {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := h.source.Read(buf[len(buf):min(cap(buf), maxHeld+1)])
		buf = buf[:len(buf)+n]
		h.mu.Lock()
		h.beginning = buf
		h.mu.Unlock()
		if err != nil {
			h.err = err
			return
		}
		if len(buf) > maxHeld {
			h.err = nil
			enough()
			return
		}
	}
	h.err = nil
}

// take copies what was read, and the caller has not yet.
func (h *held) take(p []byte) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := copy(p, h.beginning[h.given:])
	h.given += n
	return n
}

// leave ends fill. A source that panics has ended.
func (h *held) leave() {
	if recover() != nil {
		h.source.panicked()
	}
	h.mu.Lock()
	h.filled = true
	ended := h.closed || h.err != nil
	h.closed = ended
	h.mu.Unlock()
	if ended {
		h.source.closeQuietly()
	}
	close(h.read)
}

// Read returns what was read, and then reads from the source.
func (h *held) Read(p []byte) (int, error) {
	h.stop.Store(true)
	if h.gone.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if n := h.take(p); n > 0 {
		return n, nil // without the rest, which may take long
	}
	<-h.read
	if h.gone.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if n := h.take(p); n > 0 {
		return n, nil
	}
	err, n := h.err, 0
	if err == nil {
		n, err = h.source.Read(p)
	}
	if err == io.EOF && h.resp.Trailer != nil {
		h.shown.Trailer = h.resp.Trailer
	}
	return n, err
}

// Close closes the source, or has fill do so when its Read has returned.
func (h *held) Close() error {
	h.stop.Store(true)
	h.gone.Store(true)
	h.mu.Lock()
	closed, filled := h.closed, h.filled
	h.closed = true
	h.mu.Unlock()
	switch {
	case closed:
		return nil
	case filled:
		return h.source.Close()
	}
	go h.source.End(h.read)
	return nil
}

// A Closer ends a body that is being read by somebody else. Wrappers of net/http's bodies give what
// decodes them to a pool in Close: while a Read runs, that is the next one's already.
type Closer struct {
	io.ReadCloser
	attempt  *race.Attempt // of the body; nil: it has no context of its own
	panicked func()        // is told that Close panicked

	once sync.Once
	err  error // of Close
}

// NewCloser returns a Closer for the body of attempt a, which may be nil.
func NewCloser(body io.ReadCloser, a *race.Attempt, panicked func()) *Closer {
	return &Closer{ReadCloser: body, attempt: a, panicked: panicked}
}

// Close closes the body, once.
func (c *Closer) Close() error {
	c.once.Do(func() { c.err = c.ReadCloser.Close() })
	return c.err
}

// overdue is how long a Read that was cancelled may take.
const overdue = time.Second

// End cancels the attempt, so that a Read of its body returns, and closes the body when left is
// closed, which says that it has. If a Read does not end with its context, End closes the body
// after a second.
func (c *Closer) End(left <-chan struct{}) {
	if c.attempt != nil {
		c.attempt.Lose()
	}
	late := time.NewTimer(overdue)
	defer late.Stop()
	select {
	case <-left:
	case <-late.C:
	}
	c.closeQuietly()
}

// closeQuietly closes the body. Nobody is there to be told of an error, or of a panic.
func (c *Closer) closeQuietly() {
	defer func() {
		if recover() != nil {
			c.panicked()
		}
	}()
	_ = c.Close()
}
