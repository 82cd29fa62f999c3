package hedge

import (
	"io"
	"net/http"

	"github.com/gohedge/hedge/internal/race"
)

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

// awaitFirstByte waits for the first bytes of resp's body. A body that fails before
// them is a failure. The caller reads those bytes, or that error, all the same. After a
// 101 it is the caller who speaks first, so there is nothing to wait for.
func awaitFirstByte(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	buf := make([]byte, 512)
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetched{resp.Body, buf[:n], err}
	if err != nil && err != io.EOF {
		return errFailure
	}
	return nil
}

// prefetched is a body whose beginning has been read.
type prefetched struct {
	io.ReadCloser
	beginning []byte
	err       error // came with the last byte of beginning; nil: the body goes on
}

func (b *prefetched) Read(p []byte) (int, error) {
	if len(b.beginning) > 0 || b.err != nil {
		n := copy(p, b.beginning)
		b.beginning = b.beginning[n:]
		if len(b.beginning) > 0 {
			return n, nil
		}
		return n, b.err
	}
	return b.ReadCloser.Read(p)
}
