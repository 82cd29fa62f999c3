package endpoints_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// copies returns WithEndpoints for near and n copies of it.
func copies(n int) hedge.HTTPOption {
	all := []hedge.Endpoint{{URL: near}}
	for i := range n {
		all = append(all, hedge.Endpoint{URL: fmt.Sprintf("http://copy%d.test", i)})
	}
	return hedge.WithEndpoints(all...)
}

// knows returns a Transport that knows the usual latency of near, and that the other endpoints take d.
func knows(t *testing.T, rt *doubles.RoundTripper, d time.Duration, opts ...hedge.HTTPOption) *hedge.Transport {
	tr := warm(t, rt, opts...)
	rt.Answer = inEndpoints(rt, after(rt, time.Minute), after(rt, d))
	resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 20*ms), "GET", site, nil))
	require.NoError(t, err)
	text(t, resp)
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	rt.Forget()
	return tr
}

func TestFailureStartsHedgeAtOtherEndpointAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		method string // "": GET
		status int
		header []string
		length int64 // of the body; 0: as it is
		moves  bool
	}{
		"error":             {status: 0, moves: true},
		"502":               {status: 502, moves: true},
		"502, a large body": {status: 502, length: 1 << 20},
		"502 to HEAD":       {method: "HEAD", status: 502, length: 1 << 20, moves: true},
		"502, any length":   {status: 502, length: -1, moves: true},
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
					tr := knows(t, rt, 80*ms, toFar(hedge.Endpoint{}))
					answer := inEndpoints(rt, failsOnce(rt, 3*ms, c.status, c.header...), after(rt, 80*ms))
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						resp, err := answer(req, n)
						if resp != nil {
							resp.ProtoMajor, resp.ContentLength = proto, cmp.Or(c.length, resp.ContentLength)
						}
						return resp, err
					}
					start := time.Now()
					resp, err := tr.RoundTrip(request(t, t.Context(), cmp.Or(c.method, "GET"), site, nil))
					require.NoError(t, err)
					if !c.moves {
						assert.Equal(t, c.status, resp.StatusCode)
						text(t, resp)
						assert.Equal(t, 3*ms, time.Since(start))
						synctest.Wait()
						assert.Len(t, rt.Sent(), 1)
						return
					}
					assert.Equal(t, "answer 1", text(t, resp))
					assert.Equal(t, 83*ms, time.Since(start), "although the usual latency is less")
					assert.Equal(t, map[string]int{"catalog.test": 1, "catalog.far.test": 1}, hosts(rt.Sent()))
				})
			})
		}
	}
}

// TestFailureStartsNoHedge has calls that end with the failure, at the same time and with the same requests as without endpoints.
func TestFailureStartsNoHedge(t *testing.T) {
	canceled := make(chan struct{})
	close(canceled)
	for name, c := range map[string]struct {
		opts   []hedge.HTTPOption
		change func(*http.Request) *http.Request
		err    error
	}{
		"without endpoints":   {opts: []hedge.HTTPOption{}},
		"of a write":          {change: func(r *http.Request) *http.Request { r.Method = "POST"; return r }},
		"that may not go":     {change: func(r *http.Request) *http.Request { r.Header.Set("X-Tenant", "5"); return r }},
		"without budget":      {opts: []hedge.HTTPOption{toFar(hedge.Endpoint{}), hedge.WithBudget(hedge.NewBudget(0, 1))}},
		"without hedges":      {opts: []hedge.HTTPOption{toFar(hedge.Endpoint{}), hedge.WithMaxHedges(0)}},
		"of a call sent once": {change: func(r *http.Request) *http.Request { return r.WithContext(hedge.WithoutHedging(r.Context())) }},
		"in shadow mode":      {opts: []hedge.HTTPOption{toFar(hedge.Endpoint{}), hedge.WithShadow()}},
		"after a time limit":  {err: fmt.Errorf("below: %w", context.DeadlineExceeded)},
		"after a cancel":      {err: fmt.Errorf("below: %w", context.Canceled)},
		"of a canceled request": {change: func(r *http.Request) *http.Request {
			r.Cancel = canceled //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
			return r
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				if c.opts == nil {
					c.opts = []hedge.HTTPOption{toFar(hedge.Endpoint{})}
				}
				if c.err == nil {
					c.err = errDown
				}
				tr := warm(t, rt, c.opts...)
				rt.Answer = inEndpoints(rt, func(r *http.Request, _ int) (*http.Response, error) {
					time.Sleep(3 * ms)
					return nil, c.err
				}, quick(rt))
				req := request(t, t.Context(), "GET", site, nil)
				if c.change != nil {
					req = c.change(req)
				}
				start := time.Now()
				_, err := tr.RoundTrip(req)
				assert.Equal(t, c.err, err)
				assert.Equal(t, 3*ms, time.Since(start))
				assert.Len(t, rt.Sent(), 1)
			})
		})
	}
}

// TestPrepareErrorOfPrimaryStartsNoHedge has a primary at far, because near is ejected, for which Prepare fails.
func TestPrepareErrorOfPrimaryStartsNoHedge(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		errKey, broken := errors.New("no key"), false
		prepare := func(*http.Request) error {
			if broken {
				return errKey
			}
			return nil
		}
		all := hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: far, Prepare: prepare}, hedge.Endpoint{URL: "http://copy.test"})
		tr := knows(t, rt, 80*ms, all, hedge.WithBudgetPercent(100))
		rt.Answer = inEndpoints(rt, fails, quick(rt))
		for range 20 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		rt.Forget()
		broken = true
		_, err := get(t, tr, site)
		assert.ErrorIs(t, err, errKey)
		assert.Empty(t, rt.Sent())
	})
}

// TestFailuresGoThroughEndpointsUpToMaxHedges has endpoints that all fail.
func TestFailuresGoThroughEndpointsUpToMaxHedges(t *testing.T) {
	for hedges := 1; hedges <= 4; hedges++ {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := warm(t, rt, copies(4), hedge.WithMaxHedges(hedges))
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
		tr := knows(t, rt, 500*ms, copies(2))
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, 500*ms))
		start := time.Now()
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 5*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, 503*ms, time.Since(start))
		assert.Len(t, rt.Sent(), 2)
	})
}

// TestFailureOfHedgeStartsNextOne has a primary that is slow, and a first hedge that fails. The hedge that this starts is as slow
// and takes no delay from the schedule, whose next hedge is in time.
func TestFailureOfHedgeStartsNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, copies(3), hedge.WithMaxHedges(3))
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			mu.Lock()
			at = append(at, time.Since(start))
			mu.Unlock()
			switch req.URL.Host {
			case "copy0.test":
				return failsOnce(rt, 3*ms, 502)(req, n)
			case "copy2.test":
				return quick(rt)(req, n)
			}
			return after(rt, time.Minute)(req, n)
		}
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 50*ms), "GET", site, nil))
		require.NoError(t, err)
		assert.Equal(t, "answer 3", text(t, resp))
		assert.Equal(t, []time.Duration{0, 50 * ms, 53 * ms, 100 * ms}, at)
		assert.Equal(t, 100*ms+usual, time.Since(start))
	})
}

// TestFailoverCountsAsHedge has at most two hedges in a call: one that fails, and the one that this starts.
func TestFailoverCountsAsHedge(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, copies(3))
		rt.Answer = inEndpoints(rt, after(rt, 300*ms), func(req *http.Request, n int) (*http.Response, error) {
			if n == 1 {
				return failsOnce(rt, 3*ms, 0)(req, n)
			}
			return after(rt, time.Minute)(req, 0)
		})
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 50*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		assert.Len(t, rt.Sent(), 3)
	})
}

// TestHungFailoverEndsInTime has a failure whose hedge gets no response, at an endpoint whose latency is known or not.
func TestHungFailoverEndsInTime(t *testing.T) {
	for name, c := range map[string]struct {
		client func(*testing.T, *doubles.RoundTripper) *hedge.Transport
		held   time.Duration
	}{
		"80 ms": {func(t *testing.T, rt *doubles.RoundTripper) *hedge.Transport {
			return knows(t, rt, 80*ms, toFar(hedge.Endpoint{}))
		}, 4 * 80 * ms},
		"a minute": {func(t *testing.T, rt *doubles.RoundTripper) *hedge.Transport {
			return knows(t, rt, 30*time.Second, toFar(hedge.Endpoint{}))
		}, time.Second},
		"not known": {func(t *testing.T, rt *doubles.RoundTripper) *hedge.Transport {
			return warm(t, rt, toFar(hedge.Endpoint{}))
		}, 11 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := c.client(t, rt)
				rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, time.Hour))
				start := time.Now()
				_, err := get(t, tr, site)
				assert.Equal(t, errDown, err)
				assert.InDelta(t, 3*ms+c.held, time.Since(start), float64(ms))
				assert.Len(t, rt.Sent(), 2)
			})
		})
	}
}

// TestFailureIsHeldAsUsualForHedgeOfSchedule has a hedge that started before the primary failed, at an endpoint that takes longer than
// the failure is held.
func TestFailureIsHeldAsUsualForHedgeOfSchedule(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := knows(t, rt, 80*ms, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1))
		rt.Answer = inEndpoints(rt, failsOnce(rt, 50*ms, 0), after(rt, 80*ms))
		start := time.Now()
		_, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 49*ms), "GET", site, nil))
		assert.Equal(t, errDown, err)
		assert.Less(t, time.Since(start), 80*ms)
		assert.Len(t, rt.Sent(), 2)
	})
}

// TestLatencyOfEndpointIsLearnedByFailovers has a far endpoint whose latency is not known, and failures that the first hedges cannot
// mend in time.
func TestLatencyOfEndpointIsLearnedByFailovers(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, toFar(hedge.Endpoint{}))
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, 80*ms))
		failed := 0
		for range 5 {
			resp, err := get(t, tr, site)
			if err != nil {
				failed++
				continue
			}
			text(t, resp)
		}
		assert.LessOrEqual(t, failed, 2)
	})
}

// TestFailoversLeaveBudgetToRetries has failures that start hedges while there are tokens. Nothing is kept for them: a retrier spends all
// that is left.
func TestFailoversLeaveBudgetToRetries(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		budget := hedge.NewBudget(0.01, 10)
		tr := knows(t, rt, 80*ms, toFar(hedge.Endpoint{}), hedge.WithBudget(budget))
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, 80*ms))
		left := budget.Tokens()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.InDelta(t, left-1, budget.Tokens(), 0.01)
		for range int(left - 1) {
			assert.True(t, budget.Spend())
		}
		assert.Less(t, budget.Tokens(), 1.0)
		_, err = get(t, tr, site)
		assert.Equal(t, errDown, err, "it is used up")
		budget.Refund()
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
	})
}

// TestFailureWithoutFailoverIsNotBuffered has a failure that the budget pays no hedge for. Its body comes from the server as the
// caller reads it.
func TestFailureWithoutFailoverIsNotBuffered(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, toFar(hedge.Endpoint{}), hedge.WithBudget(hedge.NewBudget(0.01, 1)))
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), fails)
		_, err := get(t, tr, site) // takes the token
		require.Equal(t, errDown, err)
		body := new(readRecorder)
		rt.Answer = inEndpoints(rt, func(req *http.Request, _ int) (*http.Response, error) {
			resp := rt.Response(req, 502, "failure")
			body.ReadCloser, resp.Body = resp.Body, body
			return resp, nil
		}, fails)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.Zero(t, body.reads.Load())
		assert.Equal(t, "failure", text(t, resp))
	})
}

// A readRecorder counts the reads of a body.
type readRecorder struct {
	io.ReadCloser
	reads atomic.Int32
}

func (b *readRecorder) Read(p []byte) (int, error) {
	b.reads.Add(1)
	return b.ReadCloser.Read(p)
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

// TestLargeFailureOfHedgeStartsNextOne has a first hedge that gets a failed response with a large body, which nobody keeps.
func TestLargeFailureOfHedgeStartsNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, copies(2))
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			switch req.URL.Host {
			case "copy0.test":
				resp, err := failsOnce(rt, 3*ms, 502)(req, n)
				if err == nil {
					resp.ContentLength = 1 << 20
				}
				return resp, err
			case "copy1.test":
				return quick(rt)(req, n)
			}
			return after(rt, time.Minute)(req, n)
		}
		start := time.Now()
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 50*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, 53*ms+usual, time.Since(start))
	})
}

// TestDeadlineIsComparedWithLatencyOfFailover has callers whose time is too short for the endpoint to which the hedge would go, although
// the usual latency of the call is less, and the reverse.
func TestDeadlineIsComparedWithLatencyOfFailover(t *testing.T) {
	for name, c := range map[string]struct {
		takes, timeout time.Duration
		sent           int
	}{
		"too short":  {80 * ms, 60 * ms, 1},
		"sufficient": {4 * ms, 3*ms + usual - ms, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := knows(t, rt, c.takes, toFar(hedge.Endpoint{}))
				rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, c.takes))
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				start := time.Now()
				resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
				assert.Len(t, rt.Sent(), c.sent)
				if c.sent == 1 {
					assert.Equal(t, errDown, err)
					assert.Equal(t, 3*ms, time.Since(start))
					return
				}
				require.NoError(t, err)
				text(t, resp)
				assert.Equal(t, 3*ms+c.takes, time.Since(start))
			})
		})
	}
}

// TestHungFailoversHoldFailuresForLatencyOfEndpoint has an endpoint that usually takes 20 ms and hangs. The calls usually take longer than a
// failure may be held for it.
func TestHungFailoversHoldFailuresForLatencyOfEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, 900*ms)
		tr := hedge.New(rt, toFar(hedge.Endpoint{}), hedge.WithBudgetPercent(100))
		warmUp(t, tr)
		rt.Answer = inEndpoints(rt, after(rt, time.Minute), after(rt, 20*ms))
		resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 20*ms), "GET", site, nil))
		require.NoError(t, err)
		text(t, resp)
		time.Sleep(2 * time.Minute)
		rt.Forget()
		rt.Answer = inEndpoints(rt, failsOnce(rt, 3*ms, 0), after(rt, time.Hour))
		for n := range 4 {
			start := time.Now()
			_, err := get(t, tr, site)
			assert.Equal(t, errDown, err)
			assert.Equal(t, 3*ms+4*20*ms, time.Since(start), "call %d", n)
			assert.Len(t, rt.Sent(), 2*(n+1))
		}
	})
}
