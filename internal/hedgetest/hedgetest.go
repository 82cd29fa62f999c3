// Package hedgetest has the doubles that tests of hedging share. They are safe
// under the fake time of testing/synctest and for concurrent use.
package hedgetest

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

// Sleep waits for d, or until ctx ends, and returns its cause then.
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

// A RoundTripper answers by script and remembers what it was sent.
type RoundTripper struct {
	// Answer makes attempt n (from 0) of all that was sent. It should read req.Body itself.
	Answer func(req *http.Request, n int) (*http.Response, error)

	mu   sync.Mutex
	sent []*http.Request
	open atomic.Int64
}

// RoundTrip answers by script and closes the request's body.
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

// Sent returns the requests that arrived, in order.
func (rt *RoundTripper) Sent() []*http.Request {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.Clone(rt.sent)
}

// Forget empties what Sent returns and starts n anew.
func (rt *RoundTripper) Forget() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.sent = nil
}

// Open returns the number of bodies made by Response that are not closed.
func (rt *RoundTripper) Open() int { return int(rt.open.Load()) }

// Response makes a response whose body fails once the request's context has ended.
func (rt *RoundTripper) Response(req *http.Request, status int, body string) *http.Response {
	rt.open.Add(1)
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{}, ContentLength: int64(len(body)),
		Body: &tracked{Reader: strings.NewReader(body), ctx: req.Context(), open: &rt.open},
	}
}

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
