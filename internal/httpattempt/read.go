package httpattempt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
)

// HasBody reports whether req has a body.
func HasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// BodyRead reports whether ReadBody has read a body.
func (r *Requests) BodyRead() bool { return r.body != nil }

// ReadBody reads the caller's body, so that each attempt can have a copy. GetBody would
// not do: some callers return the same reader each time, or none. If the body fails, or
// has another length than ContentLength, ReadBody returns an error and a request whose
// body fails in the same way. If the caller gives up, ReadBody returns the cause alone; panics
// of the body are counted from then on.
func (r *Requests) ReadBody(req *http.Request, panics *atomic.Int64) (*http.Request, error) {
	body, cause, err := readAll(req, panics)
	switch {
	case cause != nil:
		return nil, cause
	case err == nil && int64(len(body)) != req.ContentLength:
		err = errLength
	case err == nil:
		r.body = body
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

var (
	errLength   = errors.New("hedge: body is not of ContentLength")
	errCanceled = errors.New("net/http: request canceled") // the text of net/http's own
)

// readAll reads the body of req, and one byte more than ContentLength, which shows a body
// that is too long. It returns the cause as soon as the caller gives up; the body is closed
// then, as HTTP/2 does, so that its Read returns.
//
// What the goroutines need of req is taken before they start: once RoundTrip has returned that
// cause, the caller may use its request for another body.
func readAll(req *http.Request, panics *atomic.Int64) (read []byte, cause, err error) {
	body, limit := req.Body, req.ContentLength+1
	ctx, canceled := req.Context(), req.Cancel //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
	if ctx.Done() == nil && canceled == nil || inMemory(body) {
		read, err = io.ReadAll(io.LimitReader(body, limit))
		return read, nil, err
	}
	type result struct {
		read     []byte
		err      error
		panicked any
	}
	results := make(chan result, 1)
	begun := ctx.Err() == nil // or nobody waits for what is read
	if begun {
		go func() {
			var r result
			defer func() {
				r.panicked = recover()
				results <- r
			}()
			r.read, r.err = io.ReadAll(io.LimitReader(body, limit))
		}()
	}
	select {
	case r := <-results:
		if r.panicked != nil {
			panic(r.panicked)
		}
		return r.read, nil, r.err
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case <-canceled:
		cause = errCanceled
	}
	go func() {
		defer func() {
			if recover() != nil || begun && (<-results).panicked != nil {
				panics.Add(1)
			}
		}()
		_ = body.Close()
	}()
	return nil, cause, nil
}

// What io.NopCloser makes, and http.NewRequest of a reader that has no Close.
var (
	nopCloser         = reflect.TypeOf(io.NopCloser(io.LimitReader(nil, 0)))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)

// inMemory reports whether a Read of body cannot block: it reads memory, as far as is known.
func inMemory(body io.ReadCloser) bool {
	v := reflect.ValueOf(body)
	if t := v.Type(); t != nopCloser && t != nopCloserWriterTo {
		return false
	}
	switch v.Field(0).Interface().(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// failingReader fails with err.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
