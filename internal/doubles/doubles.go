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

// Sleep waits for d and returns nil. If ctx ends first, Sleep returns its cause.
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

// A RoundTripperFunc is a function that is an http.RoundTripper.
type RoundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f RoundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A RoundTripper answers with a function and records the requests that it gets.
type RoundTripper struct {
	// Answer answers the request, which is number n of all requests; the first is number 0.
	// It has to read req.Body itself.
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

// Sent returns the requests that RoundTrip has got, in order.
func (rt *RoundTripper) Sent() []*http.Request {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.Clone(rt.sent)
}

// Forget drops the recorded requests: Sent returns none, and the next request is number 0.
func (rt *RoundTripper) Forget() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.sent = nil
}

// Open returns the number of bodies that Response has made and nobody has closed.
func (rt *RoundTripper) Open() int { return int(rt.open.Load()) }

// Response returns an HTTP/2 response. Its body cannot be read any more once the context of
// the request has ended, as that of a real transport.
func (rt *RoundTripper) Response(req *http.Request, status int, body string) *http.Response {
	rt.open.Add(1)
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{}, ContentLength: int64(len(body)),
		Body: &tracked{Reader: strings.NewReader(body), ctx: req.Context(), open: &rt.open},
	}
}

// tracked is a body that counts itself as open until it is closed.
type tracked struct {
	io.Reader
	ctx  context.Context
	open *atomic.Int64
	once sync.Once
}

func (b *tracked) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

func (b *tracked) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}
