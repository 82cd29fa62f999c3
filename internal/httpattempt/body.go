package httpattempt

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// ReleaseWithBody gives resp a body that releases the attempt when it ends or is closed. If there is no body, it releases the attempt at once. It does
// nothing if the attempt has nothing to release.
func ReleaseWithBody(resp *http.Response, a *race.Attempt) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		a.Release()
	case a.NeedsRelease():
		resp.Body = newBody(resp.Body, a)
	}
}

// newBody returns b as a body that releases a at its end. If b is an io.Writer, as after 101 Switching Protocols, so is the result.
func newBody(b io.ReadCloser, a *race.Attempt) io.ReadCloser {
	kept := body{b, a}
	if w, ok := b.(io.Writer); ok {
		return struct {
			body
			io.Writer
		}{kept, w}
	}
	return kept
}

// A body is the body of the winner. Its end, or Close, releases the attempt.
type body struct {
	io.ReadCloser
	attempt *race.Attempt
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.Release()
	}
	return n, err
}

func (b body) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.Release()
	return err
}

// ErrFailure is the error of an attempt whose response is a failure. The caller gets the response itself.
var ErrFailure = errors.New("hedge: response is a failure")

// CallWithResponse calls f, a function of the program, with resp. If f panics or ends the goroutine, it closes the body of resp.
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

// AwaitFirstByte waits for the first bytes of the body of resp. It returns ErrFailure if the body fails before them. The reader of the body gets the
// bytes, or the error, all the same. It does not wait after a 101, where the caller sends first.
func AwaitFirstByte(resp *http.Response) error {
	if resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if n, err := Prefetch(resp); n == 0 && err != nil && err != io.EOF {
		return ErrFailure
	}
	return nil
}

// Prefetch waits for the first bytes of the body of resp, and returns their number and the error that came with them. The reader of the body gets
// both. The body is not nil.
func Prefetch(resp *http.Response) (n int, err error) {
	buf := make([]byte, 512)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetched{ReadCloser: resp.Body, beginning: buf[:n], err: err}
	return n, err
}

// A prefetched is a body whose first bytes were read.
type prefetched struct {
	io.ReadCloser
	beginning []byte
	err       error       // came with the last byte of beginning; nil: the body goes on
	closed    atomic.Bool // Close was called; the source decides about the result of a Read then
}

func (b *prefetched) Read(p []byte) (int, error) {
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

func (b *prefetched) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
