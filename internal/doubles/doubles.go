// Package doubles provides test doubles and helpers that tests of several packages share. They work in the fake time of
// testing/synctest, and are safe for concurrent use.
package doubles

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Sleep waits for the duration d and returns nil. If ctx ends before, it returns the cancellation cause of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A RoundTripperFunc is a function that implements http.RoundTripper.
type RoundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f RoundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A RoundTripper is a test double for an http.RoundTripper. It records each request, and returns the response of the function
// Answer.
type RoundTripper struct {
	// Answer returns the response to request number n, which counts from 0. It must read req.Body if the test needs the body to
	// be read.
	Answer func(req *http.Request, n int) (*http.Response, error)

	mu   sync.Mutex      // guards sent
	sent []*http.Request // recorded requests
	open atomic.Int64    // number of response bodies that were not closed yet
}

// RoundTrip records req, calls Answer, and then closes the body of req.
func (rt *RoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	rt.mu.Lock()
	n := len(rt.sent)
	rt.sent = append(rt.sent, req)
	rt.mu.Unlock()
	resp, err := rt.Answer(req, n)
	if resp != nil && resp.Request == nil {
		resp.Request = req
	}
	return resp, err
}

// Sent returns a copy of the list of recorded requests, in the order in which they were sent.
func (rt *RoundTripper) Sent() []*http.Request {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.Clone(rt.sent)
}

// Forget deletes the recorded requests. The next request has number 0 again.
func (rt *RoundTripper) Forget() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.sent = nil
}

// OpenBodies returns the number of bodies of responses made by Response that were not closed yet. A test uses it to detect leaks.
func (rt *RoundTripper) OpenBodies() int { return int(rt.open.Load()) }

// Response returns an HTTP/2 response to req with the given status and body. As with http.Transport, reading the body fails
// after the context of req has ended.
func (rt *RoundTripper) Response(req *http.Request, status int, body string) *http.Response {
	rt.open.Add(1)
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{}, ContentLength: int64(len(body)),
		Body: &trackedBody{Reader: strings.NewReader(body), ctx: req.Context(), open: &rt.open},
	}
}

// A trackedBody is a response body that counts as open until Close is called.
type trackedBody struct {
	io.Reader
	ctx  context.Context // context of the request; reads fail after it has ended
	open *atomic.Int64   // number of open bodies, which Close decrements
	once sync.Once
}

// Read returns an error if the context of the request has ended.
func (b *trackedBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

// Close counts the body as closed, once.
func (b *trackedBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}
