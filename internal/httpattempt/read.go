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

// HasBody reports whether req has a body. [http.NoBody] does not count.
func HasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// HasReadBody reports whether ReadBody has read the complete body into memory.
func (r *Requests) HasReadBody() bool { return r.body != nil }

// ReadBody reads the body of req, the caller's request, into memory, so that each attempt can send a copy. On success
// it returns req. It does not use GetBody, because some programs do not set that function, or return the same reader
// again.
//
// If the body fails or its length differs from ContentLength, ReadBody returns an error and a copy of req. The body of
// the copy returns the same bytes and the same error as the original body.
//
// If the caller's context ends first, ReadBody returns the cause and a nil request. If the body panics after that,
// ReadBody increments panics.
func (r *Requests) ReadBody(req *http.Request, panics *atomic.Int64) (*http.Request, error) {
	body, cause, err := readBody(req, panics)
	switch {
	case cause != nil:
		return nil, cause
	case err == nil && int64(len(body)) != req.ContentLength:
		err = errLength
	case err == nil:
		r.body = body
		// The body was read completely, so an error of Close does not matter. net/http ignores the error as well.
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
	// errLength is the error of ReadBody for a body whose length differs from ContentLength.
	errLength = errors.New("hedge: body is not of ContentLength")
	// errCanceled is the error of ReadBody after the deprecated channel Cancel of the request was closed. It has the text
	// of net/http's own error.
	errCanceled = errors.New("net/http: request canceled")
)

// readBody reads the body of req, up to one byte more than ContentLength, so that the caller can detect a longer body.
// The result read contains the bytes, and err is the error of the body.
//
// If the caller's context ends first, readBody returns at once, and the result cause is the cause of the context. It
// then closes the body in the background, so that a pending Read returns, and counts a panic of the body in panics.
//
// The goroutines of readBody use no field of req, because the program may reuse the request after RoundTrip has
// returned.
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

var (
	// nopCloserType and nopCloserWriterToType are the unexported types that [io.NopCloser] returns. [http.NewRequest] wraps
	// readers in them.
	nopCloserType         = reflect.TypeOf(io.NopCloser(io.LimitReader(nil, 0)))
	nopCloserWriterToType = reflect.TypeOf(io.NopCloser(new(bytes.Buffer)))
)

// isInMemory reports whether body is known to read from memory, so that Read cannot block. The result is true for a
// [bytes.Reader], [bytes.Buffer] or [strings.Reader] that was wrapped by [io.NopCloser].
func isInMemory(body io.ReadCloser) bool {
	v := reflect.ValueOf(body)
	if t := v.Type(); t != nopCloserType && t != nopCloserWriterToType {
		return false
	}
	switch v.Field(0).Interface().(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// A failingReader is an [io.Reader] whose Read always returns err. It stands for the rest of a body that has failed.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
