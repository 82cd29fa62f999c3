package worlds_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

// A middleware is an opaque http.RoundTripper around the base.
type middleware struct {
	p      *httpPlay
	base   *http.Transport
	before *http.Transport // of the first half of the past; nil: it is base
}

func (y *middleware) CloseIdleConnections() { y.base.CloseIdleConnections() }

func (y *middleware) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, p := req.Context(), y.p
	number, _ := strconv.Atoi(req.Header.Get(callHeader))
	info, _ := hedge.AttemptFromContext(ctx)
	attempt := info.Number + p.shift
	panics := func(where string) bool { return number > 0 && p.w.way.panics == where+strconv.Itoa(attempt) }
	if p.w.way.panics == "warm" && req.URL.Path == "/warm" {
		panic("warm")
	}
	leave, err := y.acquireSlot(ctx)
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	if panics("roundtrip") {
		leave()
		time.Sleep(40 * ms)
		panic("RoundTrip")
	}
	resp, err := y.send(req, number, attempt)
	if p.w.way.asksValue {
		_ = ctx.Value(tenantKey{})
	}
	if err != nil {
		leave()
		return nil, err
	}
	p.open.Add(1)
	resp.Body = &checkedBody{ReadCloser: resp.Body, p: p, ctx: ctx, leave: leave, panicsInRead: panics("read"), panicsInClose: panics("close")}
	return resp, nil
}

// acquireSlot acquires a slot of the bulkhead.
func (y *middleware) acquireSlot(ctx context.Context) (leave func(), err error) {
	places := y.p.places
	if places == nil {
		return func() {}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (y *middleware) send(req *http.Request, number, attempt int) (*http.Response, error) {
	w := y.p.w
	if w.way.cache && number > 0 && number != poisoned && req.Method == http.MethodGet {
		act := w.calls[number-1].acts[min(attempt, 3)]
		time.Sleep(5*ms + min(act.wait, 200*ms))
		text := "from memory: call " + strconv.Itoa(number)
		return &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req, ContentLength: int64(len(text)),
			Header: http.Header{winnerHeader: {strconv.Itoa(attempt - y.p.shift)}}, Body: io.NopCloser(strings.NewReader(text))}, nil
	}
	if w.way.rewrite {
		r := req.Clone(req.Context())
		r.URL.Host, r.Host = "inner.test", "inner.test"
		req = r
	}
	if y.before != nil && !y.p.present.Load() && -number < w.past.calls/2 {
		return y.before.RoundTrip(req)
	}
	if w.way.lags > 0 && attempt == y.p.shift && number > 0 && number != poisoned {
		return y.sendLate(req)
	}
	return y.base.RoundTrip(req)
}

// sendLate sends a request over a connection that accepts no bytes for a time. It returns when the context ends. A
// goroutine reads the request after that, as the goroutine of an HTTP/2 connection may.
func (y *middleware) sendLate(req *http.Request) (*http.Response, error) {
	ctx, written := req.Context(), make(chan struct{})
	go func() {
		defer close(written)
		time.Sleep(y.p.w.way.lags)
		if isChanged(req) {
			y.p.note("6 touched", "a request is written as its caller has changed it since")
		}
		_ = ctx.Value(tenantKey{})
		if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.WroteHeaderField != nil {
			trace.WroteHeaderField(callHeader, req.Header[callHeader])
		}
	}()
	select {
	case <-written:
		return y.base.RoundTrip(req)
	case <-ctx.Done():
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, ctx.Err()
	}
}

// A checkedBody is a response body that reports wrong use.
type checkedBody struct {
	io.ReadCloser
	p                           *httpPlay
	ctx                         context.Context
	leave                       func()
	panicsInRead, panicsInClose bool
	reading, closed             atomic.Bool
}

func (b *checkedBody) Read(buf []byte) (int, error) {
	if b.p.w.way.asksDone {
		select {
		case <-b.ctx.Done():
			return 0, io.ErrUnexpectedEOF
		default:
		}
	}
	b.reading.Store(true)
	defer b.reading.Store(false)
	if b.panicsInRead {
		panic("Read")
	}
	return b.ReadCloser.Read(buf)
}

func (b *checkedBody) Close() error {
	if b.reading.Load() {
		b.p.note("6 overlap", "a response's body is closed while it is read")
	}
	if b.closed.Swap(true) {
		return nil
	}
	b.p.open.Add(-1)
	b.leave()
	err := b.ReadCloser.Close()
	if b.panicsInClose {
		panic("Close")
	}
	return err
}
