package http_test

import (
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// hostStates are the HTTP versions that a Transport may know of a host: the major versions of its responses, in order.
var hostStates = map[string][]int{
	"unknown": nil, "HTTP/1.1": {1}, "HTTP/2": {2}, "HTTP/3": {3}, "no version": {0}, "upgraded": {1, 2}, "HTTP/2 and HTTP/3": {2, 3}, "cached": {0, 1},
}

// inState returns a Transport over rt that has received responses with these versions.
func inState(t *testing.T, rt *doubles.RoundTripper, versions []int, opts ...hedge.HTTPOption) *hedge.Transport {
	script := rt.Answer
	rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
		resp, err := quick(rt)(req, n)
		if resp != nil {
			resp.ProtoMajor = versions[n%len(versions)]
		}
		return resp, err
	}
	tr := hedge.New(rt, append(opts, hedge.WithInitialDelay(usual+ms))...)
	if len(versions) > 0 {
		warmUp(t, tr)
	}
	rt.Answer = script
	rt.Forget()
	return tr
}

// observation is the data that a goroutine of a RoundTripper reads from its request.
func observation(req *http.Request) string {
	_, hasDeadline := req.Context().Deadline()
	var file any
	if req.MultipartForm != nil {
		file = req.MultipartForm.Value["f"]
	}
	return fmt.Sprint(req.Method, req.Host, req.URL.Path, req.URL.RawQuery, req.Header["X"], req.Header["Y"], req.Form, req.PostForm, file, req.PathValue("route"), hasDeadline)
}

// TestTransportCopiesDataThatAttemptsReadAfterCall uses a RoundTripper that returns when its context ends, while one of
// its goroutines still reads the request, as in HTTP/2 and HTTP/3. The caller reuses everything. The race detector
// finds shared memory.
func TestTransportCopiesDataThatAttemptsReadAfterCall(t *testing.T) {
	for state, versions := range hostStates {
		for end, fails := range map[string]bool{"a hedge wins": false, "the caller gives up": true, "all fail": true, "the primary fails alone": true} {
			t.Run(state+", "+end, func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					var readers atomic.Int32
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						ctx, before := req.Context(), observation(req)
						trace := httptrace.ContextClientTrace(ctx)
						if trace != nil && trace.GetConn != nil {
							trace.GetConn("catalog.test:80")
						}
						if trace != nil && trace.GotConn != nil {
							trace.GotConn(httptrace.GotConnInfo{Reused: true})
						}
						_, _ = io.ReadAll(req.Body)
						ctx.Done()
						readers.Add(1)
						go func() {
							defer readers.Add(-1)
							time.Sleep(500 * ms)
							if attempt, _ := hedge.AttemptFromContext(ctx); attempt.Number > 0 && !fails {
								return // the winner, whose request may be read until its body is closed
							}
							assert.Equal(t, before, observation(req))
							_ = ctx.Value(tenantKey{})
							_ = ctx.Err()
							if trace != nil && trace.ConnectStart != nil {
								trace.ConnectStart("tcp", "catalog.test:80")
							}
							body, err := req.GetBody()
							assert.NoError(t, err)
							whole, _ := io.ReadAll(body)
							assert.Equal(t, "body", string(whole))
						}()
						attempt, _ := hedge.AttemptFromContext(req.Context())
						switch {
						case end == "the primary fails alone":
							return nil, errDown
						case end == "all fail":
							time.Sleep(usual + 5*ms)
							return nil, errDown
						case attempt.Number > 0 && !fails:
							return after(rt, 5*ms)(req, n)
						}
						<-req.Context().Done()
						return nil, req.Context().Err()
					}
					tr := inState(t, rt, versions, hedge.WithHedgeable(func(*http.Request) bool { return true }), hedge.WithObserver(&recorder{}))
					parent, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					ctx := &borrowed{Context: parent}
					var hooks atomic.Int32
					traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
						GetConn:      func(string) {},
						ConnectStart: func(string, string) { hooks.Add(1) },
					})
					if end == "the caller gives up" {
						time.AfterFunc(30*ms, cancel)
					}
					req := ownRequest(t, traced)
					start := time.Now()
					resp, err := tr.RoundTrip(req)
					assert.Less(t, time.Since(start), 50*ms, "a winner waits for no loser")
					assert.Equal(t, fails, err != nil)
					if err == nil {
						assert.Same(t, req, resp.Request)
						require.NoError(t, resp.Body.Close())
					}
					ctx.over.Store(true)
					vandal(req)
					change(req)
					req.MultipartForm.Value["f"][0] = "changed"
					req.SetPathValue("route", "changed")
					time.Sleep(time.Minute)
					synctest.Wait()
					assert.Zero(t, readers.Load())
					assert.Zero(t, hooks.Load(), "a hook was called after the call")
					assert.False(t, ctx.late.Load(), "the context was used after the call")
				})
			})
		}
	}
}

// ownRequest returns a request that has everything which can be changed in place.
func ownRequest(t *testing.T, ctx context.Context) *http.Request {
	req := request(t, ctx, "PUT", site+"?q=own", strings.NewReader("body"))
	req.Header["X"], req.Header["Y"] = []string{"own"}, []string{"own", "two"}
	req.Form, req.PostForm = url.Values{"x": {"own"}}, url.Values{"x": {"own"}}
	req.MultipartForm = &multipart.Form{Value: map[string][]string{"f": {"own"}}}
	req.SetPathValue("route", "own")
	return req
}

// TestWinnerDoesNotWaitForRoundTripperThatIgnoresContext covers all hosts whose primary may use HTTP/1.1.
func TestWinnerDoesNotWaitForRoundTripperThatIgnoresContext(t *testing.T) {
	for _, state := range []string{"unknown", "HTTP/1.1", "upgraded", "HTTP/2 and HTTP/3", "cached"} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				time.Sleep([]time.Duration{time.Second, 5 * ms}[min(n, 1)])
				return rt.Response(req, 200, ""), nil
			}
			tr := inState(t, rt, hostStates[state])
			start := time.Now()
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Less(t, time.Since(start), 50*ms, state)
		})
	}
}

// TestWinnerDoesNotWaitForBlockingHook covers every version: a RoundTripper calls GetConn and GotConn before it
// returns.
func TestWinnerDoesNotWaitForBlockingHook(t *testing.T) {
	for state, versions := range hostStates {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
					trace.GotConn(httptrace.GotConnInfo{})
				}
				time.Sleep(5 * ms)
				return rt.Response(req, 200, ""), nil
			}
			tr := inState(t, rt, versions)
			ctx := httptrace.WithClientTrace(hedge.WithDelay(t.Context(), 20*ms), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { time.Sleep(3 * time.Second) }})
			start := time.Now()
			resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.LessOrEqual(t, time.Since(start), 125*ms, "%s: the hedge is due after 20 ms and takes 5, and a hook that runs is waited for 100 ms", state)
			time.Sleep(time.Minute)
		})
	}
}

// TestTraceHooksObservePrimaryUntilItsFailureIsRead: a failure is returned with its body, and hooks such as PutIdleConn come later.
func TestTraceHooksObservePrimaryUntilItsFailureIsRead(t *testing.T) {
	for state, versions := range hostStates {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			var trace *httptrace.ClientTrace
			rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
				trace = httptrace.ContextClientTrace(req.Context())
				return rt.Response(req, 500, "down"), nil
			}
			tr := inState(t, rt, versions)
			put := 0
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{PutIdleConn: func(error) { put++ }})
			resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
			require.NoError(t, err)
			trace.PutIdleConn(nil)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, 1, put, state)
		})
	}
}

// TestNestedTransportsHedgeOnceForAnyKeyAndHost has keys and hosts with an empty name.
func TestNestedTransportsHedgeOnceForAnyKeyAndHost(t *testing.T) {
	for _, key := range []string{"all", "", "\x00"} {
		for _, target := range []string{site, "file:///item"} {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = quick(rt)
				inner := hedge.New(rt)
				outer := hedge.New(inner, hedge.WithKeyFunc(func(context.Context, string, string) string { return key }))
				call := func(tr http.RoundTripper) {
					resp, err := get(t, tr, target)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				for range 20 {
					call(inner)
					call(outer)
				}
				rt.Forget()
				rt.Answer = after(rt, time.Minute)
				call(outer)
				assert.Len(t, rt.Sent(), 3, "key %q, %s", key, target)
			})
		}
	}
}

// TestTransportAndHedgerWorkInSeveralSynctestBubbles uses a Transport and a Hedger outside of bubbles, and in two
// bubbles one after the other. Calls are hedged each time.
func TestTransportAndHedgerWorkInSeveralSynctestBubbles(t *testing.T) {
	for _, version := range []int{0, 1, 2} {
		for _, outside := range []bool{false, true} {
			var slow atomic.Bool
			work := func(ctx context.Context) error {
				d := ms
				if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && slow.Load() {
					d = time.Second
				}
				return doubles.Sleep(ctx, d)
			}
			tr := hedge.New(roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, ProtoMajor: version, Header: http.Header{}, Body: http.NoBody}, work(req.Context())
			}), hedge.WithBudgetPercent(400), hedge.WithBurst(time.Hour))
			h := hedge.NewHedger(hedge.WithBudgetPercent(400), hedge.WithBurst(time.Hour))
			calls := func(t *testing.T) int64 {
				before := tr.Snapshot().Stats.HedgeWins + h.Snapshot().Stats.HedgeWins
				ctx := hedge.WithDelay(t.Context(), 20*ms)
				for i := range 10 {
					slow.Store(i == 5)
					_, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
					require.NoError(t, err)
					_, err = hedge.Do(ctx, h, "k", func(ctx context.Context) (int, error) { return 0, work(ctx) })
					require.NoError(t, err)
				}
				return tr.Snapshot().Stats.HedgeWins + h.Snapshot().Stats.HedgeWins - before
			}
			inBubble := func(t *testing.T) {
				assert.EqualValues(t, 2, calls(t), "version %d", version)
				time.Sleep(time.Minute) // until the losers have ended: time stops with this function
			}
			if outside {
				assert.GreaterOrEqual(t, calls(t), int64(2), "version %d", version) // more where the machine is slow
			}
			synctest.Test(t, inBubble)
			synctest.Test(t, inBubble)
			if outside {
				assert.GreaterOrEqual(t, calls(t), int64(2), "version %d", version)
			}
		}
	}
}

// TestPreconditionFailedByOtherAttemptDoesNotWin: the copy of a conditional write that comes second is answered with 412.
func TestPreconditionFailedByOtherAttemptDoesNotWin(t *testing.T) {
	for method, want := range map[string]int{"PUT": 200, "DELETE": 200, "GET": 412} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if err := doubles.Sleep(req.Context(), []time.Duration{15 * ms, 8 * ms}[min(n, 1)]); err != nil {
					return nil, err
				}
				return rt.Response(req, []int{412, 200}[min(n, 1)], ""), nil
			}
			req := request(t, hedge.AllowHedging(t.Context()), method, site, nil)
			req.Header.Set("If-Match", `"1"`)
			resp, err := warm(t, rt).RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, want, resp.StatusCode, method)
		})
	}
}
