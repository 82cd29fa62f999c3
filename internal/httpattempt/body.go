package httpattempt

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// KeepAttempt gives resp a body that releases its attempt when it ends or is closed, if the attempt
// has something to release. Without a body, it is released at once.
func KeepAttempt(resp *http.Response, a *race.Attempt) {
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		a.Release()
	case a.Keep():
		resp.Body = newBody(resp.Body, a)
	}
}

// newBody returns b as a body that keeps the context of its attempt until its end.
// If b is a Writer, as that of 101 Switching Protocols is, so is the result.
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

// body is a winner's body. Its end or Close releases the attempt that it came from.
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

// ErrFailure is the error of an attempt whose response must not win. The response says itself
// what failed.
var ErrFailure = errors.New("hedge: response is a failure")

// Ask asks users' code about resp. If that panics or ends the goroutine, Ask closes resp's body,
// which nobody else has.
func Ask[T any](resp *http.Response, ask func(*http.Response) T) T {
	answered := false
	defer func() {
		if !answered && resp.Body != nil {
			defer func() { _ = recover() }() // the first panic counts
			_ = resp.Body.Close()
		}
	}()
	answer := ask(resp)
	answered = true
	return answer
}

// AwaitFirstByte waits for the first bytes of resp's body, and returns ErrFailure if the body
// fails before them. The caller reads those bytes, or that error, all the same. After a
// 101 it is the caller who speaks first, so there is nothing to wait for.
func AwaitFirstByte(resp *http.Response) error {
	if resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if n, err := Prefetch(resp); n == 0 && err != nil && err != io.EOF {
		return ErrFailure
	}
	return nil
}

// Prefetch waits for the first bytes of resp's body, which its reader gets all the same. It
// returns how many there are, and the error that came with them. Resp must have a body.
func Prefetch(resp *http.Response) (n int, err error) {
	buf := make([]byte, 512)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetched{ReadCloser: resp.Body, beginning: buf[:n], err: err}
	return n, err
}

// prefetched is a body whose beginning has been read.
type prefetched struct {
	io.ReadCloser
	beginning []byte
	err       error       // came with the last byte of beginning; nil: the body goes on
	closed    atomic.Bool // the source says what a Read is then
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
