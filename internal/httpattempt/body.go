package httpattempt

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// ReleaseWithBody postpones the release of the resources of attempt a until the body of resp has been read or closed.
// It replaces the body by a body that calls a.Release. If resp is nil or has no body, it releases the resources at
// once.
func ReleaseWithBody(resp *http.Response, a *race.Attempt) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		a.Release()
	case a.NeedsRelease():
		resp.Body = newReleasingBody(resp.Body, a)
	}
}

// newReleasingBody returns a body that reads from b and releases attempt a at its end. The result implements
// [io.Writer] if b does, as the body of a 101 Switching Protocols response does.
func newReleasingBody(b io.ReadCloser, a *race.Attempt) io.ReadCloser {
	kept := releasingBody{b, a}
	if w, ok := b.(io.Writer); ok {
		return struct {
			releasingBody
			io.Writer
		}{kept, w}
	}
	return kept
}

// A releasingBody is the body of the winner's response. It releases the resources of the attempt when Read returns an
// error, including io.EOF, or when Close is called.
type releasingBody struct {
	io.ReadCloser
	attempt *race.Attempt
}

// Read implements [io.Reader]. An error of the wrapped body, including io.EOF, releases the attempt.
func (b releasingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.Release()
	}
	return n, err
}

// Close closes the wrapped body and releases the attempt.
func (b releasingBody) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.Release()
	return err
}

// ErrFailure is the error of an attempt whose response counts as a failure, for example because of its status code. If
// no other attempt succeeds, the caller gets the response and no error.
var ErrFailure = errors.New("hedge: response is a failure")

// CallWithResponse returns f(resp), where f is a function of the program. If f panics or calls [runtime.Goexit],
// CallWithResponse closes the body of resp, so that its connection is not leaked.
func CallWithResponse[T any](resp *http.Response, f func(*http.Response) T) T {
	returned := false
	defer func() {
		if !returned && resp.Body != nil {
			defer func() { _ = recover() }() // the first panic counts
			_ = resp.Body.Close()
		}
	}()
	result := f(resp)
	returned = true
	return result
}

// AwaitFirstByte waits until the first bytes of the body of resp have arrived, so that a response without data does not
// win the race. Later Reads of the body return these bytes. If the body fails before its first byte, AwaitFirstByte
// returns ErrFailure.
//
// It does not wait after a 101 Switching Protocols response, because then the client may have to send first.
func AwaitFirstByte(resp *http.Response) error {
	if resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if n, err := Prefetch(resp); n == 0 && err != nil && err != io.EOF {
		return ErrFailure
	}
	return nil
}

// Prefetch waits for the first bytes of the body of resp. It returns their number and the error that the body returned
// with them. Later Reads of the body return the same bytes and the same error. The body must not be nil.
func Prefetch(resp *http.Response) (n int, err error) {
	buf := make([]byte, 512)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetchedBody{ReadCloser: resp.Body, beginning: buf[:n], err: err}
	return n, err
}

// A prefetchedBody is a body whose first bytes were read by Prefetch. Its Read returns these bytes before it reads
// further bytes from the wrapped body.
type prefetchedBody struct {
	io.ReadCloser
	// bytes that Prefetch has read and the caller has not
	beginning []byte
	err       error       // error that came with the last of these bytes; nil if more bytes may follow
	closed    atomic.Bool // the caller has called Close; Read then returns the error of the wrapped body
}

// Read returns the prefetched bytes and their error first, and then reads from the wrapped body.
func (b *prefetchedBody) Read(p []byte) (int, error) {
	if (len(b.beginning) > 0 || b.err != nil) && !b.closed.Load() {
		n := copy(p, b.beginning)
		b.beginning = b.beginning[n:]
		if len(b.beginning) > 0 {
			return n, nil
		}
		return n, b.err
	}
	return b.ReadCloser.Read(p)
}

// Close closes the wrapped body. The prefetched bytes can then no longer be read.
func (b *prefetchedBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
