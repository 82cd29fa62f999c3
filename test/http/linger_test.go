package http_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// bulkhead is middleware that admits one response at a time, until its body has ended or is closed. Its inner
// RoundTripper reports connections to httptrace, or does not.
type bulkhead struct {
	place  chan struct{}
	traced bool
	answer func(req *http.Request) (*http.Response, error)
}

func (b *bulkhead) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case b.place <- struct{}{}:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	if trace := httptrace.ContextClientTrace(req.Context()); b.traced && trace != nil {
		trace.GetConn("catalog.test:80")
		trace.GotConn(httptrace.GotConnInfo{})
	}
	resp, err := b.answer(req)
	leave := sync.OnceFunc(func() { <-b.place })
	if err != nil {
		leave()
		return nil, err
	}
	resp.Body = &placed{resp.Body, leave}
	return resp, nil
}

func TestLingerCancelsLoserThatWaitsInMiddleware(t *testing.T) {
	for _, traced := range []bool{true, false} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			var mu sync.Mutex // guards what is sent
			var sent []string
			took := usual
			b := &bulkhead{place: make(chan struct{}, 1), traced: traced}
			b.answer = func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				sent = append(sent, req.Header.Get(hedge.AttemptHeader))
				d := took
				mu.Unlock()
				return respond(rt, req, 1, 200, "all"), doubles.Sleep(req.Context(), d)
			}
			tr := hedge.New(b, hedge.WithMaxHedges(1), hedge.WithAttemptHeader(hedge.AttemptHeader))
			warmUp(t, tr)
			mu.Lock()
			sent, took = nil, 5*usual
			mu.Unlock()
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
			time.Sleep(2 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if traced {
				assert.Equal(t, []string{""}, sent)
			} else {
				assert.Equal(t, []string{"", "1"}, sent, "it may be on its way")
			}
		})
	}
}

// readSlowly is a body whose Read takes a while. It notices if it is closed meanwhile.
type readSlowly struct {
	io.ReadCloser
	reading, closed, hit atomic.Bool
}

func (b *readSlowly) Read(p []byte) (int, error) {
	b.reading.Store(true)
	defer b.reading.Store(false)
	time.Sleep(5 * ms)
	return b.ReadCloser.Read(p)
}

func (b *readSlowly) Close() error {
	b.closed.Store(true)
	b.hit.Store(b.reading.Load())
	return b.ReadCloser.Close()
}

// The longest possible linger must not overflow to a short one.
func TestLingerReadsBodyOfLoserBeforeClose(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var loser atomic.Pointer[readSlowly]
		answer := func(req *http.Request, n int) (*http.Response, error) {
			resp := respond(rt, req, 1, 200, "all")
			if n == 0 {
				slow := &readSlowly{ReadCloser: resp.Body}
				loser.Store(slow)
				resp.Body = slow
			}
			return resp, doubles.Sleep(req.Context(), []time.Duration{5 * usual, usual}[min(n, 1)])
		}
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) { return answer(req, 1) }
		tr := hedge.New(rt, hedge.WithMaxHedges(1), hedge.WithLinger(math.MaxInt64))
		warmUp(t, tr)
		rt.Forget()
		rt.Answer = answer
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		time.Sleep(time.Second)
		assert.True(t, loser.Load().closed.Load())
		assert.False(t, loser.Load().hit.Load(), "it was closed during a Read")
	})
}
