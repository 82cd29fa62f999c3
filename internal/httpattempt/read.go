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

// HasBody reports whether req has a body other than [http.NoBody].
func HasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// HasReadBody reports whether ReadBody has read a complete body.
func (r *Requests) HasReadBody() bool { return r.body != nil }

// ReadBody reads the body of req, the caller's request, into memory, so that each attempt gets a copy. GetBody does not
// serve: some programs do not set it, or return the same reader again.
//
// If the body fails or has another length than ContentLength, ReadBody returns an error, and a request that replays the
// same bytes and the same error. If the caller's context ends first, ReadBody returns its cause and no request. Later
// panics of the body are counted in panics.
func (r *Requests) ReadBody(req *http.Request, panics *atomic.Int64) (*http.Request, error) {
	body, cause, err := readBody(req, panics)
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
	replay := req.WithContext(req.Context())
	replay.GetBody = nil
	replay.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), req.Body}
	return replay, err
}

var (
	errLength   = errors.New("hedge: body is not of ContentLength")
	errCanceled = errors.New("net/http: request canceled") // the text of net/http's own
)

// readBody reads the body of req, and one byte more than ContentLength to detect a body that is too long. If the
// caller's context ends first, readBody returns the cause at once and closes the body, so that a pending Read returns.
//
// Its goroutines use no field of req: the program may reuse the request after RoundTrip has returned.
func readBody(req *http.Request, panics *atomic.Int64) (read []byte, cause, err error) {
	body, limit := req.Body, req.ContentLength+1
	ctx, canceled := req.Context(), req.Cancel //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
	if ctx.Done() == nil && canceled == nil || isInMemory(body) {
		read, err = io.ReadAll(io.LimitReader(body, limit))
		return read, nil, err
	}
	type result struct {
		read     []byte
		err      error
		panicked any
	}
	results := make(chan result, 1)
	begun := ctx.Err() == nil
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

// nopCloser and nopCloserWriterTo are the types that io.NopCloser returns, also for http.NewRequest.
var (
	// nopCloser and nopCloserWriterTo are the unexported types that [io.NopCloser] returns. [http.NewRequest] wraps
	// readers in them.
	nopCloser         = reflect.TypeOf(io.NopCloser(io.LimitReader(nil, 0)))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)

// isInMemory reports whether body reads from memory, so that Read cannot block. It knows the readers of packages bytes
// and strings.
func isInMemory(body io.ReadCloser) bool {
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

// A failingReader returns err from each call of Read.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
