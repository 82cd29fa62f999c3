package http_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

type nestedKey struct{}

// layered returns a RoundTripper that sends copies of requests, with another header, context and trace.
func layered(next http.RoundTripper) http.RoundTripper {
	return doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		ctx := httptrace.WithClientTrace(context.WithValue(req.Context(), nestedKey{}, 1), &httptrace.ClientTrace{GotFirstResponseByte: func() {}})
		own := req.Clone(ctx)
		own.Header.Set("Layer", "1")
		return next.RoundTrip(own)
	})
}

const againLine = `WARN "nested hedging: a call within a hedged call is sent once" call=catalog.test`

// TestOnlyOuterOfNestedClientsHedges nests two hedged clients, with and without RoundTrippers between them.
func TestOnlyOuterOfNestedClientsHedges(t *testing.T) {
	key := hedge.WithKeyFunc(func(context.Context, string, string) string { return "all" })
	for name, stack := range map[string]func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper{
		"New": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.New(hedge.New(rt, log))
		},
		"Wrap": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.Wrap(hedge.Wrap(&http.Client{Transport: rt}, log)).Transport
		},
		"three": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.New(hedge.New(layered(hedge.New(rt, log))), key)
		},
		"layer": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.New(layered(hedge.New(rt, log)))
		},
		"key of inner": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.New(hedge.New(rt, log, key))
		},
		"key of outer": func(rt http.RoundTripper, log hedge.HTTPOption) http.RoundTripper {
			return hedge.New(hedge.New(rt, log), key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				j := fixture.NewJournal()
				tr := stack(rt, hedge.WithLogger(slog.New(j)))
				rt.Answer = quick(rt)
				warmUp(t, tr)
				rt.Forget()
				rt.Answer = after(rt, time.Minute) // every attempt
				for range 2 {
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				assert.Len(t, rt.Sent(), 2*(1+2))
				assert.Equal(t, []string{againLine}, j.Take(), "logged once")
			})
		})
	}
}

// TestSeparateCallWithinHedgedCallIsHedged has a client below that asks another server for a token, with the context of the call.
func TestSeparateCallWithinHedgedCallIsHedged(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tokens := hedge.New(rt)
		tr := hedge.New(doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			token, err := http.NewRequestWithContext(req.Context(), "GET", "http://tokens.test/", nil)
			if err != nil {
				return nil, err
			}
			resp, err := tokens.RoundTrip(token)
			if err != nil {
				return nil, err
			}
			resp.Body.Close()
			return rt.RoundTrip(req)
		}))
		warmUp(t, tr)
		rt.Forget()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if req.URL.Host == "tokens.test" && n == 0 {
				return after(rt, time.Minute)(req, n)
			}
			return quick(rt)(req, n)
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.NotZero(t, tokens.Snapshot().Stats.HedgesSent)
	})
}

// TestInnerClientHedgesCallThatOuterClientDoesNot has an outer client that sends no hedges.
func TestInnerClientHedgesCallThatOuterClientDoesNot(t *testing.T) {
	for name, never := range map[string][]hedge.HTTPOption{
		"shadow":    {hedge.WithShadow()},
		"key":       {hedge.WithShadow(), hedge.WithKeyFunc(func(context.Context, string, string) string { return "all" })},
		"no hedges": {hedge.WithMaxHedges(0)},
		"no budget": {hedge.WithBudget(hedge.NewBudget(0, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				j := fixture.NewJournal()
				tr := hedge.New(hedge.New(rt, hedge.WithLogger(slog.New(j))), never...)
				rt.Answer = quick(rt)
				warmUp(t, tr)
				rt.Forget()
				rt.Answer = after(rt, time.Minute) // every attempt
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Len(t, rt.Sent(), 1+2)
				assert.Empty(t, j.Take())
			})
		})
	}
}

// TestDoWithHedgedClientHedgesOnce has both hedge a call whose every attempt is slow: the client that of the primary, and Do twice.
func TestDoWithHedgedClientHedgesOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr, hedger := hedge.New(rt), hedge.NewHedger()
		call := func() {
			resp, err := hedge.Do(t.Context(), hedger, "catalog", func(ctx context.Context) (*http.Response, error) {
				return tr.RoundTrip(request(t, ctx, "GET", site, nil))
			})
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		rt.Answer = quick(rt)
		for range 20 {
			call()
		}
		rt.Forget()
		rt.Answer = after(rt, time.Minute) // every attempt
		call()
		assert.Len(t, rt.Sent(), 1+2+2)
	})
}
