package endpoints_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestCancelledPrepareIsNotFailure has a primary that answers while Prepare of the hedge fetches a key. The hedge was
// not sent, so its endpoint has not failed.
func TestCancelledPrepareIsNotFailure(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, 100*ms), quick(rt))
		var log bytes.Buffer
		slow := func(r *http.Request) error {
			<-r.Context().Done()
			return r.Context().Err()
		}
		tr := warm(t, rt, toFar(hedge.Endpoint{Prepare: slow}), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100),
			hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 8 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
			time.Sleep(time.Second)
		}
		away := tr.Snapshot().Keys[0].Endpoints[1]
		require.Positive(t, away.Hedges)
		assert.Zero(t, away.Failures)
		assert.False(t, away.Ejected)
		assert.NotContains(t, log.String(), "Prepare")
	})
}

// TestHedgeUnsentByPrepareCostsNothing has a Prepare that fails, panics or calls runtime.Goexit, so that the hedge is
// not sent.
func TestHedgeUnsentByPrepareCostsNothing(t *testing.T) {
	for name, prepare := range map[string]func(*http.Request) error{
		"error":  func(*http.Request) error { return errors.New("no key") },
		"panic":  func(*http.Request) error { panic("no key") },
		"Goexit": func(*http.Request) error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = after(rt, time.Second)
				tr := warm(t, rt, toFar(hedge.Endpoint{Cost: 3, Prepare: prepare}), hedge.WithMaxHedges(1))
				before := tr.Snapshot().Keys[0]
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				text(t, resp)
				require.Len(t, rt.Sent(), 1)
				k := tr.Snapshot().Keys[0]
				assert.EqualValues(t, 1, k.Denied[hedge.DeniedNotReady]-before.Denied[hedge.DeniedNotReady])
				assert.GreaterOrEqual(t, k.Budget, before.Budget)
			})
		})
	}
}

// TestBodySetByPrepareIsResent makes net/http send the request again, for which it calls GetBody.
func TestBodySetByPrepareIsResent(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := nearIsEjected(t, rt, func(r *http.Request, n int) (*http.Response, error) {
			if r.GetBody != nil {
				b, err := r.GetBody()
				require.NoError(t, err)
				again, err := io.ReadAll(b)
				require.NoError(t, err)
				assert.Equal(t, "frage", string(again))
			}
			return quick(rt)(r, n)
		}, toFar(hedge.Endpoint{Prepare: func(r *http.Request) error {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("frage")), 5
			return nil
		}}))
		req, err := http.NewRequestWithContext(t.Context(), "GET", site, strings.NewReader(""))
		require.NoError(t, err)
		require.NotNil(t, req.GetBody)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
		require.Len(t, rt.Sent(), 1)
	})
}

// TestFailingRequestBodyDoesNotEjectEndpoint has requests whose body cannot be read, so that their calls end without an
// answer.
func TestFailingRequestBodyDoesNotEjectEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, time.Second), after(rt, 80*ms))
		tr := warm(t, rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1))
		resp, err := get(t, tr, site) // after which it is known how long far takes
		require.NoError(t, err)
		text(t, resp)
		rt.Answer = inEndpoints(rt, quick(rt), after(rt, 80*ms))
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		for range 10 {
			req := request(t, t.Context(), "QUERY", site, iotest.ErrReader(errDown))
			req.ContentLength = 3
			resp, err := tr.RoundTrip(req)
			if err == nil {
				text(t, resp)
			}
			time.Sleep(time.Second)
		}
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		for _, k := range tr.Snapshot().Keys {
			for _, p := range k.Endpoints {
				assert.False(t, p.Ejected, p.Endpoint)
			}
		}
	})
}

// TestEjectionOutlivesIdleKeyOfFirstEndpoint has an ejected first endpoint. Its latency key counts as used although the
// calls go to the other endpoint.
func TestEjectionOutlivesIdleKeyOfFirstEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := nearIsEjected(t, rt, quick(rt), toFar(hedge.Endpoint{}), hedge.WithMaxKeys(8))
		for i := range 100 {
			resp, err := get(t, tr, site)
			require.NoError(t, err, "call %d", i)
			text(t, resp)
			resp, err = get(t, tr, fmt.Sprintf("http://other-%d.test/", i))
			if err == nil {
				text(t, resp)
			}
		}
	})
}

// TestRedirectWithEmptyLocationIsAnswer has a redirect that no client follows.
func TestRedirectWithEmptyLocationIsAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := nearIsEjected(t, rt, answers(rt, 302, http.Header{"Location": {""}}), toFar(hedge.Endpoint{}))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Empty(t, resp.Header.Get("Location"))
	})
}

// TestRouteFailingAtAllEndpointsKeepsFirstEndpoint has a route that fails at both endpoints, so that no endpoint is
// better.
func TestRouteFailingAtAllEndpointsKeepsFirstEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		broken := func(d time.Duration) func(r *http.Request, n int) (*http.Response, error) {
			return func(r *http.Request, n int) (*http.Response, error) {
				if r.URL.Path == "/broken" || r.URL.Path == "/mirror/broken" {
					return rt.Response(r, 500, "broken"), nil
				}
				return after(rt, d)(r, n)
			}
		}
		rt.Answer = inEndpoints(rt, broken(usual), broken(80*ms))
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		slow := 0
		for i := range 10000 {
			url := site
			if i%10 == 9 {
				url = near + "/broken"
			}
			start := time.Now()
			resp, err := get(t, tr, url)
			require.NoError(t, err)
			text(t, resp)
			if time.Since(start) >= 80*ms {
				slow++
			}
		}
		assert.Less(t, slow, 1500)
	})
}

// TestCallWithProbeCountsAsSlow has an outage. The outage check must count a slow call as slow although it has a
// probe.
func TestCallWithProbeCountsAsSlow(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, fails, quick(rt))
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1))
		call := func() (sent int) {
			rt.Forget()
			if resp, err := get(t, tr, site); err == nil {
				text(t, resp)
			}
			return len(rt.Sent())
		}
		for range 200 { // near is ejected, and far has a plan
			call()
		}
		for call() == 1 {
		}
		for range 98 { // one call in a hundred has a probe
			require.Equal(t, 1, call())
		}
		slow := func() float64 {
			for _, k := range tr.Snapshot().Keys {
				if k.Host == "catalog.far.test" {
					return k.SlowShare
				}
			}
			return -1
		}
		require.Zero(t, slow())
		rt.Answer = inEndpoints(rt, after(rt, 2*time.Second), after(rt, time.Second))
		const calls = 3
		sent := 0
		for range calls {
			start := time.Now()
			sent += call()
			require.Equal(t, time.Second, time.Since(start))
		}
		require.Equal(t, 2*calls, sent)
		assert.InDelta(t, 1-math.Pow(15.0/16, calls), slow(), 0.001)
	})
}

// TestRedirectWithinNestedEndpointIsMapped has an endpoint whose base path is below the base path of the first
// endpoint.
func TestRedirectWithinNestedEndpointIsMapped(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(r *http.Request, n int) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/v2/") {
				return answers(rt, 302, http.Header{"Location": {"/v2/b?sig=s3cret"}})(r, n)
			}
			return fails(r, n)
		}
		tr := hedge.New(rt, hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: near + "/v2", Keep: []string{"sig"}}))
		for range 6 {
			_, err := get(t, tr, site)
			require.Equal(t, errDown, err)
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, near+"/b?sig=s3cret", resp.Header.Get("Location"))
	})
}

// TestEndpointWhoseRoundTripperPanicsIsEjected has hedges that panic: they cost tokens and never win.
func TestEndpointWhoseRoundTripperPanicsIsEjected(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = inEndpoints(rt, after(rt, time.Second), func(*http.Request, int) (*http.Response, error) { panic("no pool") })
		tr := warm(t, rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))
		for range 20 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		assert.True(t, tr.Snapshot().Keys[0].Endpoints[1].Ejected)
	})
}
