package endpoints_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// failsOnce returns a function that fails attempt 0 of a call after a time, with a status or with an error if that is 0.
func failsOnce(rt *doubles.RoundTripper, after time.Duration, status int, header ...string) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, _ int) (*http.Response, error) {
		if err := doubles.Sleep(req.Context(), after); err != nil || status == 0 {
			return nil, errDown
		}
		resp := rt.Response(req, status, "failure")
		for _, field := range header {
			name, value, _ := strings.Cut(field, ": ")
			resp.Header.Set(name, value)
		}
		return resp, nil
	}
}

func TestFailureStartsHedgeAtOtherEndpointAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header []string
		moves  bool
	}{
		"error":             {status: 0, moves: true},
		"502":               {status: 502, moves: true},
		"503":               {status: 503, moves: true},
		"503, to wait":      {status: 503, header: []string{"Retry-After: 1"}},
		"504":               {status: 504, moves: true},
		"500":               {status: 500},
		"429":               {status: 429},
		"404, an answer":    {status: 404},
		"200, the response": {status: 200},
	} {
		for _, proto := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " over HTTP/", proto), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					answer := func(script func(*http.Request, int) (*http.Response, error)) func(*http.Request, int) (*http.Response, error) {
						return func(req *http.Request, n int) (*http.Response, error) {
							resp, err := script(req, n)
							if resp != nil {
								resp.ProtoMajor = proto
							}
							return resp, err
						}
					}
					rt.Answer = answer(quick(rt))
					tr := hedge.New(rt, toFar(hedge.Endpoint{}))
					warmUp(t, tr)
					rt.Forget()
					rt.Answer = inEndpoints(rt, answer(failsOnce(rt, 3*ms, c.status, c.header...)), answer(after(rt, 80*ms)))
					start := time.Now()
					resp, err := get(t, tr, site)
					if !c.moves {
						require.NoError(t, err)
						assert.Equal(t, c.status, resp.StatusCode)
						text(t, resp)
						assert.Equal(t, 3*ms, time.Since(start))
						assert.Len(t, rt.Sent(), 1)
						return
					}
					require.NoError(t, err)
					assert.Equal(t, "answer 1", text(t, resp))
					assert.Equal(t, 83*ms, time.Since(start), "although hedges are due later, and usually take less time")
					assert.Equal(t, map[string]int{"catalog.test": 1, "catalog.far.test": 1}, hosts(rt.Sent()))
				})
			})
		}
	}
}

func TestFailureStartsNoHedge(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []hedge.HTTPOption
		change func(*http.Request) *http.Request
	}{
		"without endpoints":   {opts: []hedge.HTTPOption{}},
		"of a write":          {change: func(r *http.Request) *http.Request { r.Method = "POST"; return r }},
		"that may not go":     {change: func(r *http.Request) *http.Request { r.Header.Set("X-Tenant", "5"); return r }},
		"without budget":      {opts: []hedge.HTTPOption{toFar(hedge.Endpoint{}), hedge.WithBudget(hedge.NewBudget(0, 1))}},
		"without hedges":      {opts: []hedge.HTTPOption{toFar(hedge.Endpoint{}), hedge.WithMaxHedges(0)}},
		"of a call sent once": {change: func(r *http.Request) *http.Request { return r.WithContext(hedge.WithoutHedging(r.Context())) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = quick(rt)
				if c.opts == nil {
					c.opts = []hedge.HTTPOption{toFar(hedge.Endpoint{})}
				}
				tr := hedge.New(rt, c.opts...)
				warmUp(t, tr)
				rt.Forget()
				rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), quick(rt))
				req := request(t, t.Context(), "GET", site, nil)
				if c.change != nil {
					req = c.change(req)
				}
				start := time.Now()
				_, err := tr.RoundTrip(req)
				assert.Equal(t, errDown, err)
				assert.Equal(t, 3*ms, time.Since(start))
				assert.Len(t, rt.Sent(), 1)
			})
		})
	}
}

// TestFailuresGoThroughEndpointsUpToMaxHedges has endpoints that all fail.
func TestFailuresGoThroughEndpointsUpToMaxHedges(t *testing.T) {
	for hedges := 1; hedges <= 4; hedges++ {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			all := []hedge.Endpoint{{URL: near}}
			for n := range 4 {
				all = append(all, hedge.Endpoint{URL: fmt.Sprintf("http://copy%d.test", n)})
			}
			rt.Answer = quick(rt)
			tr := hedge.New(rt, hedge.WithEndpoints(all...), hedge.WithMaxHedges(hedges))
			warmUp(t, tr)
			rt.Forget()
			rt.Answer = failsOnce(rt, 3*ms, 0)
			start := time.Now()
			_, err := get(t, tr, site)
			assert.Equal(t, errDown, err)
			assert.Equal(t, time.Duration(1+hedges)*3*ms, time.Since(start))
			assert.Len(t, rt.Sent(), 1+hedges)
			assert.Len(t, hosts(rt.Sent()), 1+hedges, "each goes elsewhere")
		})
	}
}

// TestNoHedgeIsDueAfterPrimaryHasFailed has a third endpoint at which a hedge would be due while the hedge runs that the failure
// has started.
func TestNoHedgeIsDueAfterPrimaryHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := hedge.New(rt, hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: "http://copy0.test"}, hedge.Endpoint{URL: "http://copy1.test"}), hedge.WithBudgetPercent(300))
		warmUp(t, tr)
		rt.Forget()
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, 500*ms))
		start := time.Now()
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 5*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, 503*ms, time.Since(start))
		assert.Len(t, rt.Sent(), 2)
	})
}

// TestFailureOfHedgeStartsNextOne has a primary that is slow, and a hedge that fails.
func TestFailureOfHedgeStartsNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := hedge.New(rt, hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: "http://copy0.test"}, hedge.Endpoint{URL: "http://copy1.test"}))
		warmUp(t, tr)
		rt.Forget()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			switch req.URL.Host {
			case "copy0.test":
				return failsOnce(rt, 3*ms, 502)(req, n)
			case "copy1.test":
				return quick(rt)(req, 0)
			}
			return after(rt, time.Minute)(req, 0)
		}
		start := time.Now()
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 50*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, 50*ms+3*ms+usual, time.Since(start))
	})
}

// TestHungHedgeAfterFailureEndsInTime has a failure whose hedge gets no answer.
func TestHungHedgeAfterFailureEndsInTime(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		warmUp(t, tr)
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, time.Hour))
		start := time.Now()
		_, err := get(t, tr, site)
		assert.Equal(t, errDown, err)
		assert.LessOrEqual(t, time.Since(start), time.Second+3*ms)
	})
}

// TestLastFifthOfBudgetIsKeptForFailures has a failure, slow calls that take all that they get, and then failures.
func TestLastFifthOfBudgetIsKeptForFailures(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		budget := hedge.NewBudget(0.01, 20)
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithBudget(budget))
		warmUp(t, tr)
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), quick(rt))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		for range 20 {
			rt.Forget()
			for _, script := range []func(*http.Request, int) (*http.Response, error){inEndpoints(rt, after(rt, 5*usual), quick(rt)), quick(rt)} {
				rt.Answer = script
				resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 2*usual), "GET", site, nil))
				require.NoError(t, err)
				text(t, resp)
			}
		}
		left := budget.Tokens()
		assert.InDelta(t, 4.5, left, 0.5, "a fifth is left, and a part of a token")
		rt.Answer = quick(rt)
		for range 300 { // near would be ejected otherwise
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), quick(rt))
		for range 4 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		_, err = get(t, tr, site)
		assert.Equal(t, errDown, err, "it is used up")
		assert.Less(t, budget.Tokens(), 1.0)
	})
}

// TestOutageOfAllEndpointsSpendsBudgetAlone plays an outage in which every attempt fails.
func TestOutageOfAllEndpointsSpendsBudgetAlone(t *testing.T) {
	const calls = 6000
	synctest.Test(t, func(t *testing.T) {
		rt, isOut := new(doubles.RoundTripper), false
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if isOut {
				return failsOnce(rt, 3*ms, 0)(req, n)
			}
			return quick(rt)(req, n)
		}
		tr := hedge.New(rt, toFar(hedge.Endpoint{}))
		call := func(n int) (perCall float64) {
			rt.Forget()
			for range n {
				if resp, err := get(t, tr, site); err == nil {
					text(t, resp)
				}
			}
			return float64(len(rt.Sent())) / float64(n)
		}
		call(100)
		isOut = true
		assert.LessOrEqual(t, call(calls), 1.17)
		assert.LessOrEqual(t, call(calls), 1.105, "the burst is spent")
		isOut = false
		assert.LessOrEqual(t, call(100), 1.3, "no storm")
		assert.LessOrEqual(t, call(calls), 1.1)
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}
