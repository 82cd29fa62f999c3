package hedge

import (
	"bytes"
	"errors"
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
// them is a failure. The caller reads those bytes, or that error, all the same.
func awaitFirstByte(resp *http.Response) error {
	buf := make([]byte, 512)
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	resp.Body = &prefetched{resp.Body, buf[:n], err} // never of a 101: upgrades are not hedged
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

// readBody reads the caller's body, so that each attempt can have a copy. GetBody
// would not do: some callers return the same reader each time, or none. If the body
// fails, or has another length than ContentLength, readBody returns an error and a
// request whose body fails in the same way.
func (c *call) readBody(req *http.Request) (*http.Request, error) {
	// One byte more than ContentLength shows a body that is too long.
	body, err := io.ReadAll(io.LimitReader(req.Body, req.ContentLength+1))
	if err == nil && int64(len(body)) != req.ContentLength {
		err = errLength
	}
	if err == nil {
		c.body = body
		// A Close that fails comes too late to matter: net/http ignores it as well.
		_ = req.Body.Close()
		return req, nil
	}
	rest := io.Reader(req.Body)
	if err != errLength {
		rest = failingReader{err}
	}
	whole := req.WithContext(req.Context())
	whole.GetBody = nil
	whole.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), req.Body}
	return whole, err
}

var errLength = errors.New("hedge: body is not of ContentLength")

// failingReader fails with err.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
