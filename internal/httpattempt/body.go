package httpattempt

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// ReleaseWithBody replaces the body of resp by one that releases the resources of attempt a at its end or when it is
// closed. If there is no body, it releases them at once.
func ReleaseWithBody(resp *http.Response, a *race.Attempt) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		a.Release()
	case a.NeedsRelease():
		resp.Body = newReleasingBody(resp.Body, a)
	}
}

// newReleasingBody returns b wrapped in a releasingBody. The result is an [io.Writer] if b is one, as after 101 Switching
// Protocols.
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

// A releasingBody is the body of a winner. It releases the attempt when Read returns an error, including io.EOF, or
// when it is closed.
type releasingBody struct {
	io.ReadCloser
	attempt *race.Attempt
}

func (b releasingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.Release()
	}
	return n, err
}

func (b releasingBody) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.Release()
	return err
}

// ErrFailure is the error of an attempt whose response counts as a failure. If no other attempt succeeds, the caller
// gets the response and no error.
var ErrFailure = errors.New("hedge: response is a failure")

// CallWithResponse returns f(resp) for a function f of the program. If f panics or calls [runtime.Goexit], it closes
// the body of resp.
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

// AwaitFirstByte waits until the first bytes of the body have arrived, and puts them back. It returns ErrFailure if the
// body fails before. After a 101 response it does not wait, because there the client sends first.
func AwaitFirstByte(resp *http.Response) error {
	if resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if n, err := Prefetch(resp); n == 0 && err != nil && err != io.EOF {
		return ErrFailure
	}
	return nil
}

// Prefetch waits for the first bytes of the body of resp, and returns their number and the error that came with them. A
// later Read of the body returns both again. The body must not be nil.
func Prefetch(resp *http.Response) (n int, err error) {
	buf := make([]byte, 512)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetchedBody{ReadCloser: resp.Body, beginning: buf[:n], err: err}
	return n, err
}

// A prefetchedBody is a body whose first bytes were read before the caller reads.
type prefetchedBody struct {
	io.ReadCloser
	// bytes that were read, without those that the caller has got
	beginning []byte
	err       error       // error that came after beginning; nil: the body goes on
	closed    atomic.Bool // the caller has called Close; Read then returns the source's error
}

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

func (b *prefetchedBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
