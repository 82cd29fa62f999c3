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

// HasReadBody reports whether ReadBody has read the body of the request.
func (r *Requests) HasReadBody() bool { return r.body != nil }

// ReadBody reads the body of the caller's request, so that each attempt can have a copy. GetBody does not serve: some programs return the same reader
// from each call, or set none. If the body fails, or its length differs from ContentLength, ReadBody returns an error and a request whose body has
// the same bytes and the same error. If the caller gives up, ReadBody returns the cause alone; later panics of the body are counted.
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

// readBody reads the body of req, and one byte beyond ContentLength to detect a body that is too long. If the caller gives up, it returns the cause
// at once and closes the body, as HTTP/2 does, so that a Read returns.
//
// The goroutines use values that are copied from req before they start: after RoundTrip has returned, the caller may use its request again.
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
	nopCloser         = reflect.TypeOf(io.NopCloser(io.LimitReader(nil, 0)))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)

// isInMemory reports whether body is a type of the standard library that reads from memory, so that Read cannot block.
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

// A failingReader returns err from each Read.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
