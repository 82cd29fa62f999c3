// Package doubles has test doubles that the tests of several packages share. They work
// in the fake time of testing/synctest, and are safe for concurrent use.
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

// Sleep waits for d and returns nil. If ctx ends first, it returns the cause of ctx.
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

// A RoundTripper records requests, and answers them by a function.
type RoundTripper struct {
	// Answer answers request number n; the first request is number 0. It must read req.Body itself.
	Answer func(req *http.Request, n int) (*http.Response, error)

	mu   sync.Mutex
	sent []*http.Request
	open atomic.Int64
}

// RoundTrip records the request, calls Answer, and closes the body of the request.
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

// Sent returns the recorded requests in their order.
func (rt *RoundTripper) Sent() []*http.Request {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.Clone(rt.sent)
}

// Forget deletes the recorded requests. The next request is number 0 again.
func (rt *RoundTripper) Forget() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.sent = nil
}

// Open returns the number of bodies of Response that were not closed yet.
func (rt *RoundTripper) Open() int { return int(rt.open.Load()) }

// Response returns an HTTP/2 response to req. As with a real transport, its body cannot be read after the context of the request has ended.
func (rt *RoundTripper) Response(req *http.Request, status int, body string) *http.Response {
	rt.open.Add(1)
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{}, ContentLength: int64(len(body)),
		Body: &trackedBody{Reader: strings.NewReader(body), ctx: req.Context(), open: &rt.open},
	}
}

// A trackedBody counts as open until it is closed.
type trackedBody struct {
	io.Reader
	ctx  context.Context
	open *atomic.Int64
	once sync.Once
}

func (b *trackedBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

func (b *trackedBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}
