package http_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// --- eligibility ---

func TestTransportHedgesSlowGet(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		tr := warm(t, rt)
		start := time.Now()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", text(t, resp))
		assert.InDelta(t, usual+5*ms, time.Since(start), float64(ms))
		assert.Len(t, rt.Sent(), 2)
	})
}

func TestTransportSendsPostOnce(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "CONNECT", "get"} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second)
			tr := warm(t, rt)
			resp, err := tr.RoundTrip(request(t, t.Context(), method, site, strings.NewReader("charge $10")))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Len(t, rt.Sent(), 1, method)
		})
	}
}

func TestTransportPassesUnhedgedRequestUnchanged(t *testing.T) {
	set := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	for name, change := range map[string]func(*http.Request){
		"upgrade":                 set("Upgrade", "websocket"),
		"event stream":            set("Accept", "text/html, text/event-stream"),
		"trailer":                 func(r *http.Request) { r.Trailer = http.Header{"X": nil} },
		"unknown length":          func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("a")), -1 },
		"unknown length, as zero": func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("a")), 0 },
		"chunked": func(r *http.Request) {
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(strings.NewReader("a")), 1, []string{"chunked"}
		},
		"large body": func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("a", 64<<10+1))), 64<<10+1
		},
		"without hedging": func(r *http.Request) { *r = *r.WithContext(hedge.WithoutHedging(r.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = after(rt, time.Second)
				var stats *hedge.Stats
				tr := warm(t, rt, hedge.WithStats(&stats))
				req := request(t, t.Context(), "GET", site, nil)
				change(req)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Len(t, rt.Sent(), 1)
				assert.Same(t, req, rt.Sent()[0])
				assert.EqualValues(t, 1, stats.NotHedgeable.Load())
			})
		})
	}
}

func TestTransportSendsRequestWithIdempotencyKeyOnce(t *testing.T) {
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		for _, allowed := range []bool{false, true} {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = after(rt, time.Second, 5*ms)
				ctx := t.Context()
				if allowed {
					ctx = hedge.AllowHedging(ctx)
				}
				req := request(t, ctx, "POST", site, strings.NewReader("charge $10"))
				req.Header.Set(header, "1")
				tr := warm(t, rt)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Len(t, rt.Sent(), map[bool]int{false: 1, true: 2}[allowed])
			})
		}
	}
}

func TestTransportHedgesReadingMethods(t *testing.T) {
	for _, method := range []string{"", "GET", "HEAD", "OPTIONS", "TRACE", "QUERY"} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second, 5*ms)
			tr := warm(t, rt)
			resp, err := tr.RoundTrip(request(t, t.Context(), method, site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Len(t, rt.Sent(), 2, method)
		})
	}
}

// AllowHedging and WithDelay apply to one call, not to the calls made within it.
func TestContextOverridesDoNotReachInnerCalls(t *testing.T) {
	for name, calls := range map[string]int{"cold": 1, "warm": 20} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				audit := warm(t, rt)
				rt.Answer = after(rt, time.Second, 5*ms)
				h := hedge.NewHedger()
				outer := hedge.New(doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
					return audit.RoundTrip(request(t, req.Context(), "POST", site, strings.NewReader("entry")))
				}))
				ctx := hedge.AllowHedging(hedge.WithDelay(t.Context(), 50*ms))
				for range calls {
					for _, call := range []func(context.Context) (*http.Response, error){
						func(ctx context.Context) (*http.Response, error) {
							return outer.RoundTrip(request(t, ctx, "GET", "http://front.test/", nil))
						},
						func(ctx context.Context) (*http.Response, error) {
							return hedge.Do(ctx, h, "search", func(ctx context.Context) (*http.Response, error) {
								return outer.WrappedRoundTripper().RoundTrip(request(t, ctx, "GET", site, nil))
							})
						},
					} {
						before := audit.Snapshot().Stats.HedgesSent
						resp, err := call(ctx)
						require.NoError(t, err)
						require.NoError(t, resp.Body.Close())
						assert.Equal(t, before, audit.Snapshot().Stats.HedgesSent)
					}
				}
			})
		})
	}
}

func TestContextAllowsOrForbidsHedging(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt)
		send := func(ctx context.Context, method string) int {
			rt.Answer = after(rt, time.Second, 5*ms)
			rt.Forget()
			resp, err := tr.RoundTrip(request(t, ctx, method, site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return len(rt.Sent())
		}
		assert.Equal(t, 2, send(hedge.AllowHedging(t.Context()), "POST"))
		assert.Equal(t, 1, send(hedge.WithoutHedging(t.Context()), "GET"))
		assert.Equal(t, 1, send(hedge.WithoutHedging(hedge.AllowHedging(t.Context())), "POST"))
		assert.Equal(t, 2, send(hedge.AllowHedging(hedge.WithoutHedging(t.Context())), "POST"))
	})
}

func TestWithHedgeableReplacesDefault(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		tr := warm(t, rt, hedge.WithHedgeable(func(r *http.Request) bool { return r.URL.Path != "/no" }))
		resp, err := tr.RoundTrip(request(t, t.Context(), "POST", site, strings.NewReader("query")))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 2)
		rt.Forget()
		resp, err = get(t, tr, "http://catalog.test/no")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
	})
}

// FuzzReplayable holds the default rule against net/http's: what it would send again on a
// new connection may be hedged, but for requests that it repeats only because of an
// Idempotency-Key. QUERY (draft-ietf-httpbis-safe-method-w-body) only reads as well.
func FuzzReplayable(f *testing.F) {
	f.Add("GET", "", "", "")
	f.Add("QUERY", "", "", "select")
	f.Add("POST", "Idempotency-Key", "1", "body")
	f.Add("post", "X-Idempotency-Key", "", "")
	f.Add("", "idempotency-key", "x", "b")
	f.Fuzz(func(t *testing.T, method, header, value, body string) {
		req, err := http.NewRequest("GET", site, strings.NewReader(body))
		require.NoError(t, err)
		req.Method = method
		ours := []string{"Upgrade", "Accept", "Expect", "Connection", "Authorization", "Proxy-Authorization", hedge.AttemptHeader} // see TestR4
		if header != "" && !slices.ContainsFunc(ours, func(name string) bool { return strings.EqualFold(name, header) }) {
			req.Header[http.CanonicalHeaderKey(header)] = []string{value}
		}
		want := false
		switch method {
		case "", "GET", "HEAD", "OPTIONS", "TRACE", "QUERY":
			want = true
		}
		want = want && method != "CONNECT" && len(body) <= 64<<10
		synctest.Test(t, func(t *testing.T) {
			rt := new(doubles.RoundTripper)
			rt.Answer = after(rt, time.Second, ms)
			tr := hedge.New(rt)
			resp, err := tr.RoundTrip(req.WithContext(hedge.WithDelay(t.Context(), 10*ms)))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, len(rt.Sent()) == 2)
			time.Sleep(time.Minute)
		})
	})
}

// --- winners ---

func TestFastErrorOfHedgeDoesNotBeatSlowSuccess(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return nil, errDown
			}
			return after(rt, 50*ms)(req, n)
		}
		resp, err := get(t, warm(t, rt), site)
		require.NoError(t, err)
		assert.Equal(t, "answer 0", text(t, resp))
	})
}

func TestFailureStatusDoesNotBeatSlowSuccess(t *testing.T) {
	for _, status := range []int{408, 421, 425, 429, 500, 502, 503, 504, 507, 520, 529, 599} {
		for _, bad := range []int{0, 1} { // the primary, the hedge
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == bad {
						require.NoError(t, doubles.Sleep(req.Context(), 15*ms*time.Duration(1-n)))
						return rt.Response(req, status, "busy"), nil
					}
					return after(rt, 50*ms, 8*ms)(req, n)
				}
				resp, err := get(t, warm(t, rt, hedge.WithMaxHedges(1)), site)
				require.NoError(t, err)
				assert.Equal(t, 200, resp.StatusCode)
				assert.Equal(t, fmt.Sprint("answer ", 1-bad), text(t, resp))
			})
		}
	}
}

func TestOtherStatusOfPrimaryEndsCall(t *testing.T) {
	for _, status := range []int{204, 301, 400, 401, 404, 409, 501, 505, 600} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					require.NoError(t, doubles.Sleep(req.Context(), 15*ms))
					return rt.Response(req, status, ""), nil
				}
				return after(rt, time.Second)(req, n)
			}
			resp, err := get(t, warm(t, rt), site)
			require.NoError(t, err)
			assert.Equal(t, status, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		})
	}
}

func TestWithFailureStatusReplacesDefault(t *testing.T) {
	for _, status := range []int{302, 404} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n == 1 {
					return rt.Response(req, status, ""), nil
				}
				return after(rt, 50*ms)(req, n)
			}
			resp, err := get(t, warm(t, rt, hedge.WithFailureStatus(status)), site)
			require.NoError(t, err)
			assert.Equal(t, "answer 0", text(t, resp))
		})
	}
}

func TestWithFailureFuncReplacesStatuses(t *testing.T) {
	failed := func(resp *http.Response) bool { return resp.Header.Get("Stale") != "" }
	for _, stale := range []bool{false, true} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n == 1 {
					resp := rt.Response(req, 503, "")
					if stale {
						resp.Header.Set("Stale", "yes")
					}
					return resp, nil
				}
				return after(rt, 50*ms)(req, n)
			}
			resp, err := get(t, warm(t, rt, hedge.WithFailureFunc(failed), hedge.WithMaxHedges(1)), site)
			require.NoError(t, err)
			assert.Equal(t, map[bool]int{false: 503, true: 200}[stale], resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		})
	}
}

func TestPrimaryDoesNotWaitWithoutFailureStatus(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n == 0 {
				require.NoError(t, doubles.Sleep(req.Context(), 15*ms))
				return rt.Response(req, 503, ""), nil
			}
			return after(rt, 50*ms)(req, n)
		}
		resp, err := get(t, warm(t, rt, hedge.WithFailureStatus()), site)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
	})
}

// Servers that follow draft-ietf-httpapi-idempotency-key-header answer so while the first
// request is in progress.
func TestConflictBetweenAttemptsDoesNotEndCall(t *testing.T) {
	for header, want := range map[string]int{"Idempotency-Key": 201, "X-Idempotency-Key": 201, "X-Other": 409} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if err := doubles.Sleep(req.Context(), []time.Duration{15 * ms, 8 * ms}[min(n, 1)]); err != nil {
					return nil, err
				}
				if n == 0 {
					return rt.Response(req, 409, "in progress"), nil
				}
				return rt.Response(req, 201, "charged"), nil
			}
			req := request(t, hedge.AllowHedging(t.Context()), "POST", site, strings.NewReader("charge $10"))
			req.Header.Set(header, "1")
			resp, err := warm(t, rt).RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, want, resp.StatusCode, header)
			require.NoError(t, resp.Body.Close())
			assert.Greater(t, len(rt.Sent()), 1)
		})
	}
}

func TestTransportReturnsPrimaryResponseIfAllFail(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return nil, errDown
			}
			require.NoError(t, doubles.Sleep(req.Context(), 30*ms))
			return rt.Response(req, 503, "busy"), nil
		}
		resp, err := get(t, warm(t, rt), site)
		require.NoError(t, err, "a response is never turned into an error")
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "busy", text(t, resp), "and its body can be read")
	})
}

func TestTransportReturnsPrimaryErrorIfAllFail(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			_ = doubles.Sleep(req.Context(), 30*ms)
			return nil, []error{errDown, errors.New("other"), errors.New("third")}[n]
		}
		_, err := get(t, warm(t, rt), site)
		assert.Same(t, errDown, err)
	})
}

func TestTransportDoesNotRetryFailedCall(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(*http.Request, int) (*http.Response, error) { return nil, errDown }
		_, err := get(t, warm(t, rt), site)
		assert.Same(t, errDown, err)
		time.Sleep(time.Second)
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestTimeoutErrorsStayTimeouts(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Hour)
		client := &http.Client{Transport: warm(t, rt), Timeout: 100 * ms}
		_, err := client.Get(site)
		var u *url.Error
		require.ErrorAs(t, err, &u)
		assert.True(t, u.Timeout())
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestRequestCancelChannelReachesEveryAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		cancel := make(chan struct{})
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			<-req.Cancel //lint:ignore SA1019 http.Client still sets it
			return nil, fmt.Errorf("canceled %d", n)
		}
		req := request(t, t.Context(), "GET", site, nil)
		req.Cancel = cancel //lint:ignore SA1019 http.Client still sets it
		time.AfterFunc(100*ms, func() { close(cancel) })
		start := time.Now()
		_, err := warm(t, rt).RoundTrip(req)
		assert.EqualError(t, err, "canceled 0")
		assert.Less(t, time.Since(start), time.Second)
	})
}

func TestMaxHedgesLimitsHedgesPerCall(t *testing.T) {
	for n := range 4 {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second)
			resp, err := get(t, warm(t, rt, hedge.WithMaxHedges(n)), site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Len(t, rt.Sent(), 1+n)
		})
	}
}

// --- requests and their bodies ---

func TestTransportDoesNotChangeRequest(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		req := request(t, t.Context(), "GET", site, strings.NewReader("body"))
		req.Header.Set("X", "y")
		before := *req
		header := req.Header.Clone()
		resp, err := warm(t, rt).RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, header, req.Header)
		assert.True(t, before.Body == req.Body && before.URL == req.URL && before.Context() == req.Context())
		assert.Same(t, req, resp.Request, "not an attempt's copy, whose context is dead")
		assert.NoError(t, resp.Request.Context().Err())
	})
}

// closing is a body that records whether it was closed.
type closing struct {
	io.Reader
	closed atomic.Int32
}

func (c *closing) Close() error { c.closed.Add(1); return nil }

func TestEveryAttemptSendsCompleteBody(t *testing.T) {
	payload := strings.Repeat("0123456789abcdef", 4096) // 64 KiB, the limit
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var bodies [3]string
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			// All attempts read at the same time, slowly, as over a network.
			var got bytes.Buffer
			for {
				_, err := io.CopyN(&got, req.Body, 1024)
				_ = doubles.Sleep(context.Background(), ms)
				if err != nil {
					break
				}
			}
			bodies[n] = got.String()
			again, err := req.GetBody() // net/http's, after a lost connection
			require.NoError(t, err)
			whole, err := io.ReadAll(again)
			require.NoError(t, err)
			assert.Equal(t, payload, string(whole))
			return rt.Response(req, 200, ""), nil
		}
		tr := warm(t, rt)
		own := &closing{Reader: strings.NewReader(payload)}
		req := request(t, hedge.AllowHedging(t.Context()), "POST", site, own)
		req.ContentLength = int64(len(payload)) // and no GetBody, as AWS's SDK and minio have none
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		time.Sleep(time.Minute)
		require.Len(t, rt.Sent(), 3)
		for n := range bodies {
			assert.Equal(t, len(payload), len(bodies[n]), "attempt %d", n)
			assert.Equal(t, payload, bodies[n])
		}
		assert.Positive(t, own.closed.Load())
	})
}

func TestBodyOfWrongLengthIsPassedUnchanged(t *testing.T) {
	for name, length := range map[string]int64{"longer": 2, "shorter": 9} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			var got string
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				b, err := io.ReadAll(req.Body)
				got = string(b)
				return rt.Response(req, 200, ""), err
			}
			own := &closing{Reader: strings.NewReader("body")}
			req := request(t, hedge.AllowHedging(t.Context()), "POST", site, own)
			req.ContentLength = length
			resp, err := warm(t, rt).RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, "body", got, name)
			assert.Len(t, rt.Sent(), 1)
			assert.Positive(t, own.closed.Load())
			assert.Same(t, req, resp.Request)
		})
	}
}

func TestFailingBodyIsPassedWithItsError(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			b, err := io.ReadAll(req.Body)
			assert.Equal(t, "bo", string(b))
			return nil, err
		}
		req := request(t, hedge.AllowHedging(t.Context()), "POST", site, io.MultiReader(strings.NewReader("bo"), failing{}))
		req.ContentLength = 4
		_, err := warm(t, rt).RoundTrip(req)
		assert.Same(t, errDown, err)
		assert.Len(t, rt.Sent(), 1)
	})
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDown }

func TestHedgesHaveSeparateHeaders(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				req.Header.Set("X-Attempt", fmt.Sprint(n)) // forbidden, and common
			}
			return after(rt, time.Second, 5*ms)(req, n)
		}
		req := request(t, t.Context(), "GET", site, nil)
		resp, err := warm(t, rt).RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Empty(t, req.Header)
	})
}

func TestRequestFailedByCancellationOfLoserIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n < 10 {
				return nil, race.ErrLost
			}
			return rt.Response(req, 200, "ok"), nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, "ok", text(t, resp))
		assert.Len(t, rt.Sent(), 11)
	})
}

func TestOtherCancellationsAreReturnedToCaller(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt)
		rt.Answer = func(*http.Request, int) (*http.Response, error) { return nil, context.Canceled }
		_, err := get(t, tr, site)
		assert.Equal(t, context.Canceled, err)
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestRequestWithoutURLIsPassedUnchanged(t *testing.T) {
	_, err := hedge.New(nil).RoundTrip(&http.Request{Method: "GET"})
	_, want := http.DefaultTransport.RoundTrip(&http.Request{Method: "GET"})
	assert.Equal(t, want, err)
}

// --- responses and contexts ---

func TestBodyOfWinnerIsReadableAfterRoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		resp, err := get(t, warm(t, rt), site)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		assert.Equal(t, "answer 1", text(t, resp))
	})
}

func TestBodyOfWinnerEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := warm(t, rt).RoundTrip(request(t, ctx, "GET", site, nil))
		require.NoError(t, err)
		cancel()
		_, err = io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, context.Canceled)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, resp.Body.Close(), "Close is idempotent")
	})
}

func TestEmptyBodyIsNotWrapped(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp, err := after(rt, time.Second, 5*ms)(req, n)
			if err == nil {
				resp.Body.Close()
				resp.Body = http.NoBody
			}
			return resp, err
		}
		resp, err := get(t, warm(t, rt), site)
		require.NoError(t, err)
		assert.Equal(t, http.NoBody, resp.Body)
	})
}

// writable is the body of a 101.
type writable struct {
	io.ReadCloser
	bytes.Buffer
}

func (w *writable) Read(p []byte) (int, error) { return w.ReadCloser.Read(p) }

func TestWritableBodyStaysWritable(t *testing.T) {
	answer := hedge.WithAnswerStatus(http.StatusSwitchingProtocols)
	for _, opts := range [][]hedge.HTTPOption{{answer}, {answer, hedge.WithFirstByte()}} {
		writableStaysWritable(t, opts...)
	}
}

func writableStaysWritable(t *testing.T, opts ...hedge.HTTPOption) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp, err := after(rt, time.Second, 5*ms)(req, n)
			if err == nil {
				resp.StatusCode, resp.Body = http.StatusSwitchingProtocols, &writable{ReadCloser: resp.Body}
			}
			return resp, err
		}
		ctx, cancel := context.WithCancel(t.Context()) // a caller whose context must be released
		defer cancel()
		resp, err := warm(t, rt, opts...).RoundTrip(request(t, ctx, "GET", site, nil))
		require.NoError(t, err)
		_, ok := resp.Body.(io.Writer)
		assert.True(t, ok)
		assert.Equal(t, "answer 1", text(t, resp))
	})
}

func TestFinishedRequestsLeaveNothingOnLongLivedContext(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		parent := &counting{Context: t.Context(), done: make(chan struct{})}
		tr := warm(t, rt, hedge.WithBudgetPercent(100))
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			return after(rt, 30*ms)(req, 0)
		}
		for range 100 {
			resp, err := tr.RoundTrip(request(t, parent, "GET", site, nil))
			require.NoError(t, err)
			text(t, resp)
		}
		synctest.Wait()
		assert.Positive(t, parent.made.Load())
		assert.Zero(t, parent.tied.Load())
	})
}

// A body that is made when it is read, or comes from a cache, may ask for its context only then.
func TestBodyThatUsesContextLateLeavesNothing(t *testing.T) {
	for _, version := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			parent := &counting{Context: t.Context(), done: make(chan struct{})}
			rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
				resp := rt.Response(req, 200, "made late")
				tracked := resp.Body
				resp.ProtoMajor, resp.Body = version, struct {
					io.Reader
					io.Closer
				}{readFunc(func(p []byte) (int, error) {
					select {
					case <-req.Context().Done():
						return 0, req.Context().Err()
					default:
						return tracked.Read(p)
					}
				}), tracked}
				return resp, nil
			}
			tr := hedge.New(rt)
			for range 50 {
				resp, err := tr.RoundTrip(request(t, parent, "GET", site, nil))
				require.NoError(t, err)
				assert.Equal(t, "made late", text(t, resp))
				_ = resp.Request.Context().Done()
			}
			assert.Zero(t, parent.tied.Load())
		})
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// counting is a context that counts the functions registered with it by context.AfterFunc.
type counting struct {
	context.Context
	done chan struct{}
	made atomic.Int64
	tied atomic.Int64
}

func (c *counting) Done() <-chan struct{} { return c.done }
func (c *counting) Value(any) any         { return nil }
func (c *counting) AfterFunc(func()) func() bool {
	c.made.Add(1)
	c.tied.Add(1)
	var stopped atomic.Bool
	return func() bool {
		if stopped.CompareAndSwap(false, true) {
			c.tied.Add(-1)
		}
		return true
	}
}

// Response.Location resolves against the request that the RoundTripper below has sent.
func TestResponseHasRequestThatWasSent(t *testing.T) {
	for _, version := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			slow := false
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if a, _ := hedge.AttemptFromContext(req.Context()); slow && a.Number == 0 {
					return after(rt, time.Second)(req, n)
				}
				return after(rt, usual)(req, n)
			}
			answer := rt.Answer
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				resp, err := answer(req, n)
				if resp != nil {
					resp.ProtoMajor = version
				}
				return resp, err
			}
			rewrites := true
			tr := hedge.New(doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
				if rewrites {
					req = req.Clone(req.Context())
					req.URL.Host = "replica-7.test"
				}
				return rt.RoundTrip(req)
			}), hedge.WithMaxHedges(1))
			for i := range 40 {
				rewrites, slow = i%2 == 0, i >= 30
				for _, method := range []string{"GET", "POST", "QUERY"} {
					req := request(t, t.Context(), method, site, strings.NewReader("body"))
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					if rewrites {
						assert.Equal(t, "replica-7.test", resp.Request.URL.Host, "call %d", i)
					} else {
						assert.Same(t, req, resp.Request, "call %d", i)
					}
				}
			}
		})
	}
}

// borrowed is a context that its owner uses for something else once its call is over, as those of
// some servers' requests are.
type borrowed struct {
	context.Context
	over, late atomic.Bool
}

func (c *borrowed) use() {
	if c.over.Load() {
		c.late.Store(true)
	}
}

func (c *borrowed) Done() <-chan struct{}       { c.use(); return c.Context.Done() }
func (c *borrowed) Err() error                  { c.use(); return c.Context.Err() }
func (c *borrowed) Deadline() (time.Time, bool) { c.use(); return c.Context.Deadline() }

func (c *borrowed) Value(key any) any {
	c.use()
	if key == (tenantKey{}) {
		return "tenant"
	}
	return c.Context.Value(key)
}

type tenantKey struct{}

// What is below (logs, metrics, tracing) asks for values when it has its answer. What losers ask
// for, the caller's context has been asked for before.
func TestLosersDoNotUseContextAfterCall(t *testing.T) {
	for _, version := range []int{1, 2} {
		for loser, takes := range map[string][]time.Duration{
			"the primary": {500 * ms, 5 * ms},
			"a hedge":     {usual + 10*ms, 500 * ms},
		} {
			t.Run(fmt.Sprintf("HTTP/%d, %s", version, loser), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					parent, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					ctx := &borrowed{Context: parent}
					var ended atomic.Int32
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						assert.Equal(t, "tenant", req.Context().Value(tenantKey{}))
						attempt, _ := hedge.AttemptFromContext(req.Context())
						time.Sleep(takes[attempt.Number]) // whatever its context says
						_, _ = req.Context().Deadline()
						assert.Equal(t, "tenant", req.Context().Value(tenantKey{}))
						_ = req.Context().Value("something else")
						derived, cancel := context.WithCancel(req.Context())
						cancel()
						assert.Error(t, derived.Err())
						ended.Add(1)
						return rt.Response(req, 200, ""), nil
					}
					tr := speaking(t, version, rt, hedge.WithMaxHedges(1), hedge.WithObserver(&recorder{}))
					resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					ctx.over.Store(true)
					time.Sleep(time.Minute)
					assert.EqualValues(t, 2, ended.Load())
					assert.False(t, ctx.late.Load())
				})
			})
		}
	}
}

// --- latency ---

func TestNewHostIsNotHedged(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		tr := hedge.New(rt, hedge.WithStats(&stats))
		rt.Answer = after(rt, 80*ms)
		for range 10 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.Len(t, rt.Sent(), 10)
		assert.EqualValues(t, 10, stats.WarmupRequests.Load())
		for range 10 { // and a constant service never
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.Len(t, rt.Sent(), 20)
		assert.EqualValues(t, 10, stats.WarmupRequests.Load())
	})
}

func TestInitialDelayHedgesNewHost(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		resp, err := get(t, hedge.New(rt, hedge.WithInitialDelay(30*ms)), site)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", text(t, resp))
	})
}

func TestIdleHostKeepsLatencies(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := warm(t, rt)
		time.Sleep(24 * time.Hour)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1, "a usual answer after a quiet day is not hedged")
		assert.InEpsilon(t, usual, hedge.LatencyEstimate(tr, "catalog.test", 0.9), 0.01)
	})
}

func TestErrorsAreNotMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt)
		rt.Answer = func(*http.Request, int) (*http.Response, error) { return nil, errDown }
		for range 600 {
			_, err := get(t, tr, site)
			require.Error(t, err)
		}
		assert.InEpsilon(t, usual, hedge.LatencyEstimate(tr, "catalog.test", 0.9), 0.01)
	})
}

func TestLatencyExcludesReadingResponseBody(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := warm(t, rt)
		for range 50 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			time.Sleep(time.Second) // the caller thinks
			text(t, resp)
		}
		assert.InEpsilon(t, usual, hedge.LatencyEstimate(tr, "catalog.test", 1), 0.01)
	})
}

func TestExpvarShowsTransportsAndHedgers(t *testing.T) {
	for _, v := range []expvar.Var{hedge.New(nil), hedge.NewHedger()} {
		var s hedge.Snapshot
		require.NoError(t, json.Unmarshal([]byte(v.String()), &s))
		assert.Equal(t, hedge.DefaultConfig(), s.Config)
	}
}

func TestLatencyEstimateOfUnknownHostIsZero(t *testing.T) {
	tr := hedge.New(nil)
	assert.Zero(t, hedge.LatencyEstimate(tr, "nobody", 0.9))
	assert.Zero(t, hedge.LatencyEstimate(http.DefaultTransport, "nobody", 0.9))
	assert.Empty(t, tr.Snapshot().Keys, "asking makes no key")
}

func TestKeyFuncSeparatesRoutesOfHost(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithKeyFunc(func(_ context.Context, host, name string) string { return host + " " + name }))
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if req.URL.Path == "/slow" {
				return after(rt, 900*ms)(req, 0)
			}
			return after(rt, 10*ms)(req, 0)
		}
		for range 50 {
			for _, path := range []string{"/fast", "/slow"} {
				resp, err := get(t, tr, "http://catalog.test"+path)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		}
		assert.Len(t, rt.Sent(), 100, "the slow route is not hedged for being slower than the fast")
		keys := tr.Snapshot().Keys
		require.Len(t, keys, 2)
		assert.Equal(t, "catalog.test GET /fast", keys[0].Host)
		assert.InEpsilon(t, 10*ms, keys[0].P50, 0.01)
		assert.InEpsilon(t, 900*ms, keys[1].P50, 0.01)
	})
}

func TestHedgeIsNotSentCloseToDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		tr := warm(t, rt)
		ctx, cancel := context.WithTimeout(t.Context(), 15*ms)
		defer cancel()
		_, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Len(t, rt.Sent(), 1)
		assert.EqualValues(t, 1, tr.Snapshot().Keys[0].Denied[hedge.DeniedDeadline])
	})
}

func TestWithDelaySetsDelayOfCall(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		start := time.Now()
		resp, err := hedge.New(rt).RoundTrip(request(t, hedge.WithDelay(t.Context(), 3*ms), "GET", site, nil))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 8*ms, time.Since(start), "a cold host, hedged at the caller's word")
	})
}

// --- budget and safety checks ---

func TestBudgetLimitsHedges(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		tr := hedge.New(rt, hedge.WithStats(&stats), hedge.WithMaxHedges(1))
		rt.Answer = after(rt, 30*ms)
		for range 1000 {
			resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 10*ms), "GET", site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.InDelta(t, 20+100, stats.HedgedRequests.Load(), 1, "the burst, and a tenth")
		assert.Equal(t, 1000-stats.HedgedRequests.Load(), stats.BudgetExhausted.Load())
		assert.EqualValues(t, 1000+stats.HedgesSent.Load(), len(rt.Sent()))
		assert.Equal(t, stats.HedgedRequests.Load(), stats.PrimaryWins.Load()+stats.HedgeWins.Load())
		assert.InDelta(t, 0.12, stats.HedgeRate(), 0.002)
	})
}

func TestBudgetOfZeroSendsNoHedge(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		resp, err := get(t, warm(t, rt, hedge.WithBudgetPercent(0)), site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestTransportsShareBudget(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		b := hedge.NewBudget(10, 5)
		rt.Answer = after(rt, 30*ms)
		for range 2 {
			tr := hedge.New(rt, hedge.WithBudget(b), hedge.WithMaxHedges(1))
			for range 10 {
				resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 10*ms), "GET", site, nil))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		}
		assert.InDelta(t, 20+5+2, len(rt.Sent()), 1)
		assert.Less(t, b.Tokens(), 1.1)
	})
}

func TestMaxHedgesPerSecondLimitsHedges(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		tr := hedge.New(rt, hedge.WithStats(&stats), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithMaxHedgesPerSecond(2))
		rt.Answer = after(rt, 20*ms)
		for range 500 { // 10 s
			resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 10*ms), "GET", site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.InDelta(t, 2+20, stats.HedgesSent.Load(), 1)
	})
}

func TestPushbackPausesHedging(t *testing.T) {
	for header, pause := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "3600": 10 * time.Second, "99999999999999999999": 10 * time.Second, "-1": 0, "nonsense": 0} {
		for _, status := range []int{429, 503} {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					resp := rt.Response(req, status, "")
					if header != "" {
						resp.Header.Set("Retry-After", header)
					}
					return resp, nil
				}
				tr := warm(t, rt)
				push := func(n int) {
					for range n {
						resp, err := get(t, tr, site)
						require.NoError(t, err)
						assert.Equal(t, status, resp.StatusCode)
						require.NoError(t, resp.Body.Close())
					}
				}
				busy := rt.Answer
				hedges := func() int {
					rt.Forget()
					rt.Answer = after(rt, time.Second, 5*ms)
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					return len(rt.Sent()) - 1
				}
				rt.Answer = busy
				push(1)
				assert.Zero(t, tr.Snapshot().Keys[0].PausedUntil, "one answer says little")
				assert.Positive(t, hedges())
				rt.Answer = busy
				push(fixture.UntilPause)
				if pause > 0 {
					assert.Equal(t, time.Now().Add(pause), tr.Snapshot().Keys[0].PausedUntil)
				} else {
					assert.Zero(t, tr.Snapshot().Keys[0].PausedUntil)
				}
				assert.Greater(t, tr.Snapshot().Keys[0].PushBackShare, 0.05)
				time.Sleep(time.Hour)
				assert.Zero(t, hedges(), "it is not time that helps")
				rt.Answer = quick(rt)
				for range fixture.UntilResumption {
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				assert.Positive(t, hedges())

				rt.Answer = busy
				push(fixture.UntilPause)
				assert.Zero(t, hedges())
				tr.SetEnabled(true)
				assert.Zero(t, hedges(), "it was on")
				tr.SetEnabled(false)
				tr.SetEnabled(true)
				assert.Positive(t, hedges(), "switching on forgets it")
				rt.Answer = busy
				push(fixture.UntilPause)
				assert.Equal(t, 1, tr.Reset("", ""))
				assert.Zero(t, tr.Snapshot().Keys[0].PushBackShare)
				assert.Zero(t, tr.Snapshot().Keys[0].Samples)
			})
		}
	}
}

func TestRetryAfterAcceptsDate(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		at := time.Now().Add(8 * time.Second).Truncate(time.Second).UTC()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp := rt.Response(req, 503, "")
			resp.Header.Set("Retry-After", at.Format(http.TimeFormat))
			return resp, nil
		}
		tr := warm(t, rt)
		for range fixture.UntilPause {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.True(t, at.Equal(tr.Snapshot().Keys[0].PausedUntil))
	})
}

// --- panics, hooks, switches ---

func TestPanicInHedgeIsRecovered(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var stats *hedge.Stats
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				panic("hedge")
			}
			return after(rt, 50*ms)(req, n)
		}
		resp, err := get(t, warm(t, rt, hedge.WithStats(&stats), hedge.WithMaxHedges(1)), site)
		require.NoError(t, err)
		assert.Equal(t, "answer 0", text(t, resp))
		assert.EqualValues(t, 1, stats.HedgePanics.Load())
	})
}

func TestPanicInPrimaryReachesCaller(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(*http.Request, int) (*http.Response, error) { panic(http.ErrAbortHandler) }
		tr := warm(t, rt)
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() { _, _ = get(t, tr, site) })
	})
}

func TestTraceHooksObserveOnlyPrimary(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		hooked := 0 // not atomic: users' hooks seldom are
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GetConn:  func(string) { hooked++ },
			DNSStart: func(httptrace.DNSStartInfo) { hooked++ },
		})
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GetConn != nil {
				trace.GetConn("host")
			}
			return after(rt, time.Second, 5*ms)(req, n)
		}
		tr := warm(t, rt)
		resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 1, hooked)
	})
}

func TestDisabledTransportPassesRequestsUnchanged(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		tr := warm(t, rt)
		tr.SetEnabled(false)
		assert.False(t, tr.Snapshot().Enabled)
		req := request(t, t.Context(), "GET", site, nil)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Len(t, rt.Sent(), 1)
		assert.Same(t, req, rt.Sent()[0])
		tr.SetEnabled(true)
		rt.Forget()
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 3)
	})
}

func TestUpdateChangesSettingsAndKeepsLatencies(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		tr := warm(t, rt)
		require.NoError(t, tr.Update(func(c *hedge.Config) { c.MaxHedges = 1 }))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 2)

		err = tr.Update(func(c *hedge.Config) { c.MaxHedges, c.Percentile = 3, 1.5 })
		assert.EqualError(t, err, "hedge: Config.Percentile: 1.5 is not in [0, 1)")
		assert.Equal(t, 1, tr.Snapshot().Config.MaxHedges, "nothing changes")
	})
}

// --- connections and construction ---

type closer struct {
	doubles.RoundTripper
	closed int
}

func (c *closer) CloseIdleConnections() { c.closed++ }

func TestCloseIdleConnectionsReachesInnerTransports(t *testing.T) {
	var base, hedges closer
	tr := hedge.New(&base, hedge.WithHedgeTransport(&hedges))
	(&http.Client{Transport: tr}).CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	assert.Equal(t, 1, hedges.closed)
	assert.Same(t, &base, tr.WrappedRoundTripper())
}

// wrapper is a RoundTripper that only has a WrappedRoundTripper method.
type wrapper struct{ below http.RoundTripper }

func (w wrapper) RoundTrip(req *http.Request) (*http.Response, error) { return w.below.RoundTrip(req) }
func (w wrapper) WrappedRoundTripper() http.RoundTripper              { return w.below }

// Kubernetes' client goes down by WrappedRoundTripper, and stops at the first that closes.
func TestCloseIdleConnectionsGoesThroughWrappers(t *testing.T) {
	var base, hedges closer
	hedge.New(wrapper{wrapper{&base}}, hedge.WithHedgeTransport(wrapper{&hedges})).CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	assert.Equal(t, 1, hedges.closed)
	hedge.New(wrapper{wrapper{nil}}).CloseIdleConnections()
}

func TestNilRoundTripperIsDefaultTransport(t *testing.T) {
	assert.Same(t, http.DefaultTransport, hedge.New(nil).WrappedRoundTripper())
}

func TestWrapKeepsSettingsOfClient(t *testing.T) {
	base := new(doubles.RoundTripper)
	own := &http.Client{Transport: base, Timeout: time.Minute}
	hedged := hedge.Wrap(own)
	assert.Same(t, base, own.Transport, "the client given is not changed")
	assert.Same(t, base, hedged.Transport.(*hedge.Transport).WrappedRoundTripper())
	assert.Equal(t, time.Minute, hedged.Timeout)
	assert.NotSame(t, http.DefaultClient, hedge.Wrap(nil))
	assert.Nil(t, http.DefaultClient.Transport)
}

func TestHedgesUseHedgeTransport(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		hedges := new(doubles.RoundTripper)
		hedges.Answer = after(hedges, 5*ms)
		rt.Answer = after(rt, time.Second)
		resp, err := get(t, warm(t, rt, hedge.WithHedgeTransport(hedges)), site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
		assert.Len(t, hedges.Sent(), 1)
	})
}

// A hedger that kept a goroutine, or a map entry, per host would not come back from this.
// The HTTP version of responses to hedges may differ from that of primaries.
func TestHedgeTransportDoesNotChangeKnownVersion(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		hedges := new(doubles.RoundTripper)
		hedges.Answer = over1(hedges, after(hedges, 5*ms))
		var cancelled time.Time
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			err := doubles.Sleep(req.Context(), time.Second)
			cancelled = time.Now()
			return nil, err
		}
		tr := warm(t, rt, hedge.WithHedgeTransport(hedges), hedge.WithMaxHedges(1))
		for range 2 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, time.Now(), cancelled, "a loser over HTTP/2 does not linger")
		}
	})
}

func TestMaxKeysEvictsHundredThousandHosts(t *testing.T) {
	doubles.SkipSimulation(t)
	rt := new(doubles.RoundTripper)
	rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
		rt.Forget()
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}
	goroutines := runtime.NumGoroutine()
	tr := hedge.New(rt)
	for i := range 100_000 {
		_, err := get(t, tr, fmt.Sprintf("http://host-%d.test/", i))
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, len(tr.Snapshot().Keys), hedge.DefaultConfig().MaxKeys)
	assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	assert.Less(t, m.HeapAlloc, uint64(64<<20))
	runtime.KeepAlive(tr)
}

// --- options ---

func TestOptionsRejectInvalidValues(t *testing.T) {
	for want, f := range map[string]func(){
		"hedge: Config.Percentile: 1 is not in [0, 1)":                                           func() { hedge.WithPercentile(1) },
		"hedge: Config.Percentile: NaN is not in [0, 1)":                                         func() { hedge.WithPercentile(math.NaN()) },
		"hedge: Config.MaxHedges: 5 is not in [0, 4]":                                            func() { hedge.WithMaxHedges(5) },
		"hedge: Config.BudgetPercent: -1 is not in [0, 400]":                                     func() { hedge.WithBudgetPercent(-1) },
		"hedge: Config.EstimatedRPS: +Inf is not finite and at least 0":                          func() { hedge.WithEstimatedRPS(math.Inf(1)) },
		"hedge: Config.MinDelay: -1ns is not at least 0":                                         func() { hedge.WithMinDelay(-1) },
		"hedge: Config.MaxDelay: -2ns is not at least 0, or Unset":                               func() { hedge.WithMaxDelay(-2) },
		"hedge: Config.InitialDelay: -2ns is not at least 0, or Unset":                           func() { hedge.WithInitialDelay(-2) },
		"hedge: Config.Burst: -1ns is not at least 0":                                            func() { hedge.WithBurst(-1) },
		"hedge: Config.MaxHedgesPerSecond: NaN is not finite and at least 0, or Unset":           func() { hedge.WithMaxHedgesPerSecond(math.NaN()) },
		"hedge: Config.MaxKeys: 0 is not at least 1":                                             func() { hedge.WithMaxKeys(0) },
		"hedge: Config.Linger: -1ns is not at least 0":                                           func() { hedge.WithLinger(-1) },
		"hedge: Config.MaxReplayBytes: -1 is not at least 0":                                     func() { hedge.WithMaxReplayBytes(-1) },
		`hedge: Config.AttemptHeader: "a b" is not the name of a header`:                         func() { hedge.WithAttemptHeader("a b") },
		`hedge: Config.AttemptHeader: "a:" is not the name of a header`:                          func() { hedge.Middleware("a:") },
		`hedge: Config.AttemptHeader: "Host" is not the name of a header that HTTP leaves free`:  func() { hedge.WithAttemptHeader("Host") },
		`hedge: Config.AttemptHeader: "range" is not the name of a header that HTTP leaves free`: func() { hedge.Middleware("range") },
		"hedge: Config.MaxDelay: 2ms is not at least MinDelay, 5ms":                              func() { hedge.New(nil, hedge.WithMaxDelay(2*ms), hedge.WithMinDelay(5*ms)) },
		"hedge: WithBudget: Budget was not made by NewBudget":                                    func() { hedge.WithBudget(new(hedge.Budget)) },
		"hedge: WithBudget: Budget is nil":                                                       func() { hedge.WithBudget(nil) },
		"hedge: WithStats: **Stats is nil":                                                       func() { hedge.WithStats(nil) },
		"hedge: WithKeyFunc: func is nil":                                                        func() { hedge.WithKeyFunc(nil) },
		"hedge: WithHedgeable: func is nil":                                                      func() { hedge.WithHedgeable(nil) },
		"hedge: WithHedgeTransport: RoundTripper is nil":                                         func() { hedge.WithHedgeTransport(nil) },
		"hedge: WithFailureStatus: code 1000 is not in [100, 999]":                               func() { hedge.WithFailureStatus(500, 1000) },
		"hedge: NewBudget: percent -1 is not in [0, 400]":                                        func() { hedge.NewBudget(-1, 1) },
		"hedge: NewBudget: burst -1 is not in [0, 2147483647]":                                   func() { hedge.NewBudget(1, -1) },
	} {
		func() {
			defer func() { assert.Equal(t, want, fmt.Sprint(recover())) }()
			f()
		}()
	}
}

func TestNewWithConfigReturnsErrorForInvalidConfig(t *testing.T) {
	c := hedge.DefaultConfig()
	c.BudgetPercent = -5
	_, err := hedge.NewWithConfig(nil, c)
	assert.EqualError(t, err, "hedge: Config.BudgetPercent: -5 is not in [0, 400]")
	_, err = hedge.NewWithConfig(nil, hedge.Config{})
	assert.ErrorContains(t, err, "MaxKeys", "the zero Config says so")

	c = hedge.DefaultConfig()
	c.MaxHedges = 1
	tr, err := hedge.NewWithConfig(nil, c, hedge.WithPercentile(0.99))
	require.NoError(t, err)
	assert.Equal(t, 1, tr.Snapshot().Config.MaxHedges)
	assert.Equal(t, 0.99, tr.Snapshot().Config.Percentile)
	assert.Equal(t, c, hedge.New(nil, hedge.WithConfig(hedge.DefaultConfig()), hedge.WithConfig(c)).Snapshot().Config, "later options win")
}

func TestTransportsShareStats(t *testing.T) {
	var stats *hedge.Stats
	hedge.New(nil, hedge.WithStats(&stats))
	first := stats
	require.NotNil(t, first)
	hedge.NewHedger(hedge.WithStats(&stats))
	assert.Same(t, first, stats)
	assert.Zero(t, (*hedge.Stats)(nil).Snapshot())
	assert.Zero(t, stats.HedgeRate())
}

// Protocols registered with a Transport are not registered with its clones.
func TestRegisteredProtocolsSendHedges(t *testing.T) {
	before := log.Writer()
	log.SetOutput(io.Discard) // net/http says that it cannot add HTTP/2 where https is registered
	t.Cleanup(func() { log.SetOutput(before) })
	for _, scheme := range []string{"http", "https", "sidecar"} {
		for _, limit := range []int{0, 10} {
			t.Run(fmt.Sprint(scheme, " ", limit), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rt.Answer = quick(rt)
					below := &http.Transport{MaxConnsPerHost: limit}
					below.RegisterProtocol(scheme, rt)
					tr := hedge.New(below)
					for range 20 {
						_, err := fetch(t.Context(), tr, scheme+"://catalog.test/")
						require.NoError(t, err)
					}
					rt.Forget()
					rt.Answer = after(rt, time.Second, 5*ms)
					got, err := fetch(t.Context(), tr, scheme+"://catalog.test/")
					require.NoError(t, err)
					assert.Equal(t, "answer 1", got)
				})
			})
		}
	}
}

// pooled is a body without bytes. Its Close returns memory that Read uses to a pool, as that of a decoder does, so that
// a concurrent Read and Close conflict.
type pooled struct {
	ctx           context.Context // nil: Read ends with Close alone
	closed        chan struct{}
	reading, both *atomic.Bool
	onClose       func()
}

func (b *pooled) Read([]byte) (int, error) {
	b.reading.Store(true)
	defer b.reading.Store(false)
	var done <-chan struct{}
	if b.ctx != nil {
		done = b.ctx.Done()
	}
	select {
	case <-done:
		return 0, context.Cause(b.ctx)
	case <-b.closed:
		return 0, io.ErrClosedPipe
	}
}

func (b *pooled) Close() error {
	if b.reading.Load() {
		b.both.Store(true)
	}
	close(b.closed)
	b.onClose()
	return nil
}

// slowBodyOfALoser has a hedge fail with a body that never comes, or win over a primary with such a
// body, and returns when the body was closed, after the loser had its response.
func slowBodyOfALoser(t *testing.T, rt *doubles.RoundTripper, loser, status int, body *pooled) (closed time.Duration) {
	started := time.Time{}
	body.closed, body.reading, body.both = make(chan struct{}), new(atomic.Bool), new(atomic.Bool)
	onClose := body.onClose
	body.onClose = func() {
		closed = time.Since(started)
		if onClose != nil {
			onClose()
		}
	}
	heeds := body.ctx != nil
	rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
		a, _ := hedge.AttemptFromContext(req.Context())
		takes := map[bool]time.Duration{true: 100 * ms, false: 5 * time.Second}[a.Number == loser]
		if loser == 0 {
			takes = map[bool]time.Duration{true: 100 * ms, false: 20 * ms}[a.Number == loser]
		}
		if err := doubles.Sleep(req.Context(), takes); err != nil {
			return nil, err
		}
		resp := rt.Response(req, 200, "")
		if a.Number == loser {
			require.NoError(t, resp.Body.Close())
			if body.ctx = nil; heeds {
				body.ctx = req.Context()
			}
			resp.StatusCode, resp.Body, started = status, body, time.Now()
		}
		return resp, nil
	}
	var stats *hedge.Stats
	tr := speaking(t, 1, rt, hedge.WithMaxHedges(1), hedge.WithStats(&stats))
	answer := rt.Answer
	rt.Answer = over1(rt, answer)
	resp, err := get(t, tr, site)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if onClose != nil {
		assert.EqualValues(t, 1, stats.HedgePanics.Load())
	}
	return closed
}

func TestDiscardedBodyIsNotClosedDuringRead(t *testing.T) {
	for name, c := range map[string]struct{ loser, status int }{"a hedge that fails": {1, 503}, "a primary that lingers": {0, 200}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				body := &pooled{ctx: t.Context()}
				assert.LessOrEqual(t, slowBodyOfALoser(t, rt, c.loser, c.status, body), time.Second)
				assert.False(t, body.both.Load(), "Close was called while Read ran")
			})
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) { // it does not heed its context, and nothing else would end it
				assert.LessOrEqual(t, slowBodyOfALoser(t, rt, c.loser, c.status, new(pooled)), 2*time.Second)
			})
		})
	}
}

func TestPanicOfAbandonedCloseIsCounted(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			body := &pooled{onClose: func() { panic("Close") }}
			if heeds {
				body.ctx = t.Context()
			}
			slowBodyOfALoser(t, rt, 1, 503, body)
		})
	}
}

// The response that users' code panics about is lost to all others. bubble sees that it is closed.
func TestResponseIsClosedIfFailureFuncPanics(t *testing.T) {
	for name, c := range map[string]struct {
		opt  hedge.HTTPOption
		body func(io.ReadCloser) io.ReadCloser
	}{
		"FailureFunc": {hedge.WithFailureFunc(func(r *http.Response) bool {
			if r.Header.Get("Ill") != "" {
				panic("FailureFunc")
			}
			return false
		}), func(b io.ReadCloser) io.ReadCloser { return b }},
		"Read":           {hedge.WithFirstByte(), func(b io.ReadCloser) io.ReadCloser { return &panickingBody{b, true, false} }},
		"Read and Close": {hedge.WithFirstByte(), func(b io.ReadCloser) io.ReadCloser { return &panickingBody{b, true, true} }},
	} {
		for _, ill := range []int{0, 1} { // the attempt
			t.Run(fmt.Sprint(name, " of attempt ", ill), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					var stats *hedge.Stats
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						takes := map[bool]time.Duration{true: 5 * ms, false: time.Second}[n == ill]
						resp, err := after(rt, takes)(req, n)
						if n == ill && resp != nil {
							resp.Header.Set("Ill", "yes")
							resp.Body = c.body(resp.Body)
						}
						return resp, err
					}
					tr := warm(t, rt, c.opt, hedge.WithMaxHedges(1), hedge.WithStats(&stats), hedge.WithObserver(&recorder{}))
					if ill == 0 {
						assert.Panics(t, func() { _, _ = get(t, tr, site) })
						rt.Forget()
						assert.Panics(t, func() { _, _ = get(t, tr, "http://cold.test/") })
						if name == "FailureFunc" {
							rt.Forget()
							assert.Panics(t, func() { _, _ = tr.RoundTrip(request(t, t.Context(), "POST", site, nil)) })
						}
						return
					}
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					assert.Len(t, rt.Sent(), 2)
					assert.EqualValues(t, 1, stats.HedgePanics.Load())
				})
			})
		}
	}
}
