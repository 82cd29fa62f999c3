package http_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestTransportDoesNotHedgeForwardedHedges(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, 50*ms)
		tr := warm(t, rt, hedge.WithAttemptHeader(hedge.AttemptHeader))
		target, err := url.Parse(site)
		require.NoError(t, err)
		proxy := &httputil.ReverseProxy{Transport: tr, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
		for mark, want := range map[string]int{"": 3, "0": 3, "1": 1} {
			rt.Forget()
			req := httptest.NewRequest("GET", "/", nil)
			if mark != "" {
				req.Header.Set("Hedge-Attempt", mark)
			}
			proxy.ServeHTTP(httptest.NewRecorder(), req)
			assert.Len(t, rt.Sent(), want, mark)
		}
	})
}

func TestAttemptHeaderMarksOnlyHedges(t *testing.T) {
	for name, want := range map[string][]string{"": {"", "", ""}, "hedge-attempt": {"", "1", "2"}} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second)
			tr := warm(t, rt, hedge.WithAttemptHeader(name))
			req := request(t, t.Context(), "GET", site, nil)
			req.Header.Set("Accept", "text/plain")
			sent := req.Header.Clone()
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			text(t, resp)
			require.Len(t, rt.Sent(), 3)
			for n, r := range rt.Sent() {
				assert.Equal(t, want[n], r.Header.Get(hedge.AttemptHeader))
				r.Header.Del(hedge.AttemptHeader)
				assert.Equal(t, sent, r.Header)
			}
			assert.Equal(t, sent, req.Header, "the caller's request is not changed")
		})
	}
}

// TestNestedHedgeStaysMarkedWhileHedgingIsDisabled makes calls on behalf of a hedge that would be hedged otherwise.
func TestNestedHedgeStaysMarkedWhileHedgingIsDisabled(t *testing.T) {
	for name, change := range map[string]func(*hedge.Transport, context.Context) context.Context{
		"none":     func(_ *hedge.Transport, ctx context.Context) context.Context { return ctx },
		"allowed":  func(_ *hedge.Transport, ctx context.Context) context.Context { return hedge.AllowHedging(ctx) },
		"delay":    func(_ *hedge.Transport, ctx context.Context) context.Context { return hedge.WithDelay(ctx, ms) },
		"once":     func(_ *hedge.Transport, ctx context.Context) context.Context { return hedge.WithoutHedging(ctx) },
		"disabled": func(tr *hedge.Transport, ctx context.Context) context.Context { tr.SetEnabled(false); return ctx },
	} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second)
			tr := warm(t, rt, hedge.WithAttemptHeader(hedge.AttemptHeader))
			var served context.Context
			h := hedge.Middleware(hedge.AttemptHeader)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { served = r.Context() }))
			in := httptest.NewRequest("GET", "/", nil).WithContext(t.Context())
			in.Header.Set("Hedge-Attempt", "2")
			h.ServeHTTP(httptest.NewRecorder(), in)

			for _, headers := range []http.Header{{}, nil} {
				rt.Forget()
				req := request(t, change(tr, served), "GET", site, nil)
				req.Header = headers
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				assert.Same(t, req, resp.Request)
				text(t, resp)
				require.Len(t, rt.Sent(), 1, name)
				assert.Equal(t, "2", rt.Sent()[0].Header.Get("Hedge-Attempt"), name)
				assert.Empty(t, req.Header)
			}
		})
	}
}

// TestNestedHedgeStaysMarkedForHostWithLimiter makes calls without WithAttemptHeader.
func TestNestedHedgeStaysMarkedForHostWithLimiter(t *testing.T) {
	for _, hasLimiter := range []bool{false, true} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := warm(t, rt)
			answer := after(rt, ms)
			rt.Answer = func(r *http.Request, n int) (*http.Response, error) {
				resp, err := answer(r, n)
				if hasLimiter && err == nil {
					resp.Header.Set("Hedge-Limit", "1")
				}
				return resp, err
			}
			resp, err := get(t, tr, site) // the Transport sees the Limiter
			require.NoError(t, err)
			text(t, resp)
			rt.Forget()
			handler := hedge.Middleware(hedge.AttemptHeader)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				req := request(t, r.Context(), "GET", site, nil)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				text(t, resp)
				assert.Same(t, req, resp.Request)
				assert.Empty(t, req.Header)
			}))
			in := httptest.NewRequest("GET", "/", nil).WithContext(t.Context())
			in.Header.Set("Hedge-Attempt", "2")
			handler.ServeHTTP(httptest.NewRecorder(), in)
			require.Len(t, rt.Sent(), 1)
			assert.Equal(t, map[bool]string{true: "2"}[hasLimiter], rt.Sent()[0].Header.Get("Hedge-Attempt"))
		})
	}
}

func TestNestedHedgersSendOnceForHedge(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		rec := new(recorder)
		tr := warm(t, rt, hedge.WithMaxHedges(1), hedge.WithObserver(rec))
		rec.Take()
		outer, inner := hedge.NewHedger(), hedge.NewHedger(hedge.WithObserver(rec))
		_, err := hedge.Do(hedge.WithDelay(t.Context(), 100*ms), outer, "k", func(ctx context.Context) (int, error) {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 1 {
				return hedge.Do(ctx, inner, "k", func(ctx context.Context) (int, error) {
					resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
					if err == nil {
						_ = resp.Body.Close()
					}
					return 0, err
				})
			}
			return 0, doubles.Sleep(ctx, 10*time.Second)
		})
		require.NoError(t, err)
		assert.Len(t, rt.Sent(), 1)
		assert.Equal(t, []string{"denied: nested", "start 0", "denied: nested", "start 0"}, rec.Take()[:4])
	})
}

func TestMiddlewareAllocatesNothingForPrimaries(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	h := hedge.Middleware(hedge.AttemptHeader)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	assert.Zero(t, testing.AllocsPerRun(100, func() { h.ServeHTTP(w, r) }))
}
