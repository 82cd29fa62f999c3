package http_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/internal/doubles"
)

// flushed is the body of a server that sends its header before it does the work.
type flushed struct {
	io.ReadCloser
	ctx   context.Context
	after time.Duration
	err   error // instead of a body
}

func (f *flushed) Read(p []byte) (int, error) {
	if f.after > 0 {
		if err := doubles.Sleep(f.ctx, f.after); err != nil {
			return 0, err
		}
		f.after = 0
	}
	if f.err != nil {
		return 0, f.err
	}
	return f.ReadCloser.Read(p)
}

// flushes answers at once, with bodies that begin after the n-th duration.
func flushes(rt *doubles.RoundTripper, ds ...time.Duration) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		resp, err := after(rt, 0)(req, n)
		resp.Body = &flushed{ReadCloser: resp.Body, ctx: req.Context(), after: ds[min(n, len(ds)-1)]}
		return resp, err
	}
}

func TestFirstByteDecidesWinnerWithFirstByte(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = flushes(rt, time.Second, 5*ms)
		start := time.Now()
		resp, err := get(t, warm(t, rt, hedge.WithFirstByte()), site)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", text(t, resp), "the byte that was read first is not lost")
		assert.InDelta(t, 20*usual+usual+5*ms, time.Since(start), float64(ms))
	})
}

func TestHeaderDecidesWinnerWithoutFirstByte(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = flushes(rt, time.Second)
		resp, err := get(t, warm(t, rt), site)
		require.NoError(t, err)
		text(t, resp)
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestFirstByteMeasuresLatencyToFirstByte(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = flushes(rt, 30*ms)
		tr := hedge.New(rt, hedge.WithFirstByte())
		for range 20 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			time.Sleep(time.Second) // the caller thinks
			text(t, resp)
		}
		assert.InEpsilon(t, 30*ms, hedge.LatencyEstimate(tr, "catalog.test", 0.99), 0.01)
	})
}

func TestFirstByteLetsEmptyBodyWinAtItsEnd(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"empty": io.NopCloser(strings.NewReader("")), "none": http.NoBody, "nil": nil} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				return &http.Response{StatusCode: 204, Body: body}, doubles.Sleep(req.Context(), []time.Duration{time.Second, ms}[min(n, 1)])
			}
			resp, err := get(t, warm(t, rt, hedge.WithFirstByte()), site)
			require.NoError(t, err)
			if resp.Body != nil {
				assert.Empty(t, text(t, resp), name)
			}
		})
	}
}

// brokenAtOnce is a body whose only Read has bytes and an error, as that of package gzip over a stream that was cut.
type brokenAtOnce struct {
	io.Closer
	err error
}

func (b brokenAtOnce) Read(p []byte) (int, error) { return copy(p, "part"), b.err }

func TestFirstByteLetsBodyWinThatFailsWithItsFirstBytes(t *testing.T) {
	cut := errors.New("unexpected EOF")
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp, err := after(rt, []time.Duration{0, time.Minute}[min(n, 1)])(req, n)
			if n == 0 {
				resp.Body = &flushed{ReadCloser: brokenAtOnce{resp.Body, cut}, ctx: req.Context(), after: usual + 2*ms}
			}
			return resp, err
		}
		start := time.Now()
		resp, err := get(t, warm(t, rt, hedge.WithFirstByte()), site)
		require.NoError(t, err)
		assert.Equal(t, 20*usual+usual+2*ms, time.Since(start), "a hedge is under way, and is not waited for")
		got, err := io.ReadAll(resp.Body)
		assert.Equal(t, "part", string(got))
		assert.Same(t, cut, err)
		require.NoError(t, resp.Body.Close())
	})
}

func TestFirstByteRejectsBodyThatFailsBeforeItsFirstByte(t *testing.T) {
	cut := errors.New("unexpected EOF")
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		broken := func(req *http.Request, d time.Duration) (*http.Response, error) {
			resp := rt.Response(req, 200, "")
			resp.Body = &flushed{ReadCloser: resp.Body, ctx: req.Context(), after: d, err: cut}
			return resp, nil
		}
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return broken(req, ms)
			}
			return flushes(rt, 50*ms)(req, n)
		}
		tr := warm(t, rt, hedge.WithFirstByte(), hedge.WithMaxHedges(1))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, "answer 0", text(t, resp))

		// If all fail, the primary's response comes, and its body fails as it would have.
		rt.Forget()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) { return broken(req, 30*ms) }
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		assert.Same(t, cut, err)
		require.NoError(t, resp.Body.Close())
	})
}

// Who closes a body has no more of it, as over net/http: what was read first is no exception.
func TestFirstByteDoesNotReadBodyAfterClose(t *testing.T) {
	for name, first := range map[string]int{"the primary's": 0, "a hedge's": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := hedgetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
				if first > 0 {
					server.At(1, hedgetest.Fault{Stall: true})
				}
				rt := server.Transport()
				tr := hedge.New(rt, hedge.WithFirstByte())
				hedgetest.Warm(t, tr, usual, "catalog.test")
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				n, err := resp.Body.Read(make([]byte, 10))
				assert.Zero(t, n)
				assert.EqualError(t, err, "http: read on closed response body", "as net/http says it")
			})
		})
	}
}
