package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
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

// over1 changes the version of rt's responses to HTTP/1.1, whose losers linger.
func over1(rt *doubles.RoundTripper, answer func(*http.Request, int) (*http.Response, error)) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		resp, err := answer(req, n)
		if resp != nil {
			resp.ProtoMajor = 1
		}
		return resp, err
	}
}

// speaking returns a Transport over rt that knows the usual time of the host, and its
// protocol, of the given version.
func speaking(t *testing.T, version int, rt *doubles.RoundTripper, opts ...hedge.HTTPOption) *hedge.Transport {
	script := rt.Answer
	rt.Answer = quick(rt)
	if version == 1 {
		rt.Answer = over1(rt, quick(rt))
	}
	tr := hedge.New(rt, opts...)
	warmUp(t, tr)
	rt.Answer = script
	rt.Forget()
	return tr
}

// change modifies req as callers do that reuse a request.
func change(req *http.Request) {
	req.Header.Set("X", "changed")
	req.Header["Y"][0] = "changed"
	req.URL.Path = "/changed"
	req.Method, req.Host = "POST", "changed.test"
}

func TestCallerMayChangeRequestAfterBodyClose(t *testing.T) {
	for _, version := range []int{1, 2} {
		for name, took := range map[string]time.Duration{
			"the primary lingers":                     500 * ms,
			"a hedge starts as the primary's answers": 0, // both at the same moment
		} {
			t.Run(fmt.Sprint("HTTP/", version, " ", name), func(t *testing.T) {
				for range 20 {
					bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
						rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
							if n == 0 {
								time.Sleep(max(took, usual))
							}
							// as a transport that was waiting for a connection until now
							assert.Equal(t, "own", req.Header.Get("X"))
							assert.Equal(t, "own", req.Header.Get("Y"))
							assert.Equal(t, "/item", req.URL.Path)
							assert.Equal(t, "GET", req.Method)
							return rt.Response(req, 200, ""), nil
						}
						tr := speaking(t, version, rt, hedge.WithMinDelay(usual))
						req := request(t, hedge.WithDelay(t.Context(), usual), "GET", site, nil)
						req.Header.Set("X", "own")
						req.Header.Set("Y", "own")
						resp, err := tr.RoundTrip(req)
						require.NoError(t, err)
						require.NoError(t, resp.Body.Close())
						change(req)
					})
				}
			})
		}
	}
}

func TestInnerTransportMayChangeItsRequest(t *testing.T) {
	for _, version := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				assert.Equal(t, "catalog.test", req.URL.Host)
				assert.Empty(t, req.Header.Get("Authorization"))
				req.URL.Scheme, req.URL.Host = "https", "backend.test" // forbidden, and common
				req.Header.Set("Authorization", "token")
				return after(rt, time.Second, 5*ms)(req, n)
			}
			tr := speaking(t, version, rt)
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Greater(t, len(rt.Sent()), 1)
		})
	}
}

func TestTransportSendsHeadersUnchanged(t *testing.T) {
	want := http.Header{"A": {"1", "2"}, "User-Agent": nil, "Empty": {}, "b": {"lower case"}}
	for _, version := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second, 5*ms)
			tr := speaking(t, version, rt, hedge.WithMaxHedges(1))
			req := request(t, t.Context(), "GET", site, nil)
			req.Header = want.Clone()
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Len(t, rt.Sent(), 2)
			for _, sent := range rt.Sent() {
				assert.Equal(t, want, sent.Header)
			}
		})
	}
}

func TestGetBodyIsUsedWhileAnotherCallRuns(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, hedge.WithHedgeable(func(*http.Request) bool { return true }))
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			for i, sent := range rt.Sent() { // as a base that mirrors what it has sent
				body, err := sent.GetBody()
				require.NoError(t, err)
				b, err := io.ReadAll(body)
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprint("secret of caller ", i), string(b))
			}
			return rt.Response(req, 200, ""), nil
		}
		for i := range 5 {
			resp, err := tr.RoundTrip(request(t, t.Context(), "POST", site, strings.NewReader(fmt.Sprint("secret of caller ", i))))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
	})
}

// slowBody takes its time, until it is closed.
type slowBody struct {
	takes  time.Duration
	text   io.Reader
	closed chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.takes):
		b.takes = 0
		return b.text.Read(p)
	case <-b.closed:
		return 0, errors.New("closed")
	}
}

func (b *slowBody) Close() error { close(b.closed); return nil }

func slowRequest(t *testing.T, ctx context.Context, takes time.Duration) *http.Request {
	req := request(t, ctx, "QUERY", site, &slowBody{takes, strings.NewReader("body"), make(chan struct{})})
	req.ContentLength = 4
	return req
}

func TestReadingRequestBodyEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := warm(t, rt)
		why := errors.New("my budget is spent")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*ms, why)
		defer cancel()
		start := time.Now()
		_, err := tr.RoundTrip(slowRequest(t, ctx, time.Hour))
		assert.Same(t, why, err)
		assert.Equal(t, 50*ms, time.Since(start))
		assert.Empty(t, rt.Sent())
	})
}

func TestReadingBodyOfGetBodyEndsWithCall(t *testing.T) {
	for name, end := range map[string]func(*http.Request) (*http.Request, error){
		"the context's deadline": func(req *http.Request) (*http.Request, error) {
			ctx, cancel := context.WithTimeout(req.Context(), 50*ms)
			time.AfterFunc(time.Second, cancel)
			return req.WithContext(ctx), context.DeadlineExceeded
		},
		"Cancel": func(req *http.Request) (*http.Request, error) {
			cancel := make(chan struct{})
			time.AfterFunc(50*ms, func() { close(cancel) })
			req.Cancel = cancel //lint:ignore SA1019 http.Client still sets it
			return req, errors.New("net/http: request canceled")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = quick(rt)
				tr := warm(t, rt)
				req, want := end(slowRequest(t, t.Context(), time.Hour))
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
				start := time.Now()
				_, err := tr.RoundTrip(req)
				assert.EqualError(t, err, want.Error())
				assert.Equal(t, 50*ms, time.Since(start))
				assert.Empty(t, rt.Sent())
			})
		})
	}
}

// watchedBody counts the calls of its methods.
type watchedBody struct {
	io.ReadCloser
	read, closed atomic.Int64
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.read.Add(1)
	return b.ReadCloser.Read(p)
}

func (b *watchedBody) Close() error {
	b.closed.Add(1)
	return b.ReadCloser.Close()
}

func TestCallerMayReplaceBodyAfterFailedRoundTrip(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // goroutines that RoundTrip starts run after it has returned
	for _, ended := range []bool{false, true} {
		for _, next := range []io.ReadCloser{nil, http.NoBody, &watchedBody{ReadCloser: io.NopCloser(strings.NewReader("next"))}} {
			t.Run(fmt.Sprintf("ended before %v, then %T", ended, next), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rt.Answer = quick(rt)
					tr := warm(t, rt)
					ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
					defer cancel()
					if ended {
						cancel()
					}
					req := slowRequest(t, ctx, time.Hour)
					sent := &watchedBody{ReadCloser: req.Body}
					req.Body = sent
					_, err := tr.RoundTrip(req)
					req.Body, req.ContentLength, req.GetBody = next, 0, nil
					require.Error(t, err)
					time.Sleep(time.Minute)
					assert.EqualValues(t, 1, sent.closed.Load())
					if other, ok := next.(*watchedBody); ok {
						assert.Zero(t, other.read.Load()+other.closed.Load())
					}
				})
			})
		}
	}
}

// panickingBody panics in the configured method.
type panickingBody struct {
	io.ReadCloser
	read, close bool
}

func (b *panickingBody) Read(p []byte) (int, error) {
	if n, err := b.ReadCloser.Read(p); !b.read {
		return n, err
	}
	panic("Read")
}

func (b *panickingBody) Close() error {
	_ = b.ReadCloser.Close()
	if b.close {
		panic("Close")
	}
	return nil
}

func TestPanicOfAbandonedBodyIsCounted(t *testing.T) {
	for _, body := range []panickingBody{{read: true}, {close: true}} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = quick(rt)
			var stats *hedge.Stats
			tr := warm(t, rt, hedge.WithStats(&stats))
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			req := slowRequest(t, ctx, time.Hour)
			body.ReadCloser = req.Body
			req.Body = &body
			_, err := tr.RoundTrip(req)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(2 * time.Hour)
			assert.EqualValues(t, 1, stats.HedgePanics.Load())
		})
	}
}

func TestLatencyExcludesReadingRequestBody(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := warm(t, rt)
		for range 50 {
			resp, err := tr.RoundTrip(slowRequest(t, t.Context(), 300*ms))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.InEpsilon(t, usual, hedge.LatencyEstimate(tr, "catalog.test", 1), 0.01)
		assert.Len(t, rt.Sent(), 50)
	})
}

func TestTransportReturnsErrorForNilResponse(t *testing.T) {
	base := doubles.RoundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
	for _, method := range []string{"GET", "POST"} {
		for _, delay := range []time.Duration{0, time.Hour} {
			_, err := hedge.New(base, hedge.WithObserver(hedge.NopObserver{})).
				RoundTrip(request(t, hedge.WithDelay(t.Context(), delay), method, site, nil))
			assert.EqualError(t, err, "hedge: RoundTripper doubles.RoundTripperFunc returned a nil *Response with a nil error")
		}
	}
}

// http.Client takes a response without a Body, such as tests and caches make, for one with an empty one.
func TestTransportAcceptsResponseWithoutBody(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		for _, first := range []time.Duration{usual, time.Second} {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				return &http.Response{StatusCode: 200, ProtoMajor: 1, Request: req}, doubles.Sleep(req.Context(), []time.Duration{first, usual}[min(n, 1)])
			}
			tr := warm(t, rt, hedge.WithFirstByte(), hedge.WithResume())
			resp, err := (&http.Client{Transport: tr}).Get(site)
			require.NoError(t, err)
			assert.Empty(t, text(t, resp))
			assert.NoError(t, tr.Warm(t.Context(), 2, site))
		}
	})
}

func TestDeadlineKeepsCauseOverHTTP1(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Hour)
		tr := speaking(t, 1, rt)
		why := errors.New("my budget is spent")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*ms, why)
		defer cancel()
		_, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
		assert.Same(t, why, err)
	})
}

// Hooks that are not locked must not run beside their caller once it has its response.
func TestTraceHooksEndWithRoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		lingered := false
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			trace.GetConn("catalog.test:80")
			trace.GotConn(httptrace.GotConnInfo{Reused: true})
			if n > 0 {
				return over1(rt, after(rt, 5*ms))(req, n)
			}
			require.NoError(t, doubles.Sleep(req.Context(), 500*ms), "traced losers linger as well")
			trace.GotFirstResponseByte()
			assert.NoError(t, trace.Got1xxResponse(103, nil))
			lingered = true
			return rt.Response(req, 200, "late"), nil
		}
		tr := speaking(t, 1, rt, hedge.WithMaxHedges(1))
		var seen []string // not locked: users' hooks seldom are
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GetConn:              func(addr string) { seen = append(seen, addr) },
			GotConn:              func(info httptrace.GotConnInfo) { seen = append(seen, fmt.Sprint(info.Reused)) },
			GotFirstResponseByte: func() { seen = append(seen, "first byte") },
			Got1xxResponse:       func(int, textproto.MIMEHeader) error { seen = append(seen, "1xx"); return errDown },
		})
		resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		seen = append(seen, "returned")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.True(t, lingered)
		assert.Equal(t, []string{"catalog.test:80", "true", "returned"}, seen)
	})
}

func TestSpellingsOfHostShareKey(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		tr := hedge.New(rt)
		for _, url := range []string{
			"http://catalog.test/", "http://CATALOG.test/", "http://catalog.test:80/", "http://catalog.test./", "http://Catalog.test.:80/", "https://catalog.test:443/",
			"http://[2001:DB8::1]/", "http://[2001:db8::1]:80/", "http://catalog.test:443/", "http://catalog.test.:8080/",
		} {
			resp, err := get(t, tr, url)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		var hosts []string
		for _, k := range tr.Snapshot().Keys {
			hosts = append(hosts, k.Host)
		}
		assert.Equal(t, []string{"[2001:db8::1]", "catalog.test", "catalog.test:443", "catalog.test:8080"}, hosts)
	})
}

// A plan may be published between the moment at which a request's body is read for copies
// and the moment at which its call begins.
func TestRequestIsNotChangedWhileBodyIsUnread(t *testing.T) {
	const size = 100
	var shared atomic.Int64
	base := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		if _, raced := hedge.AttemptFromContext(req.Context()); raced {
			if _, own := req.Body.(*closing); own {
				shared.Add(1)
			}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	})
	tr := hedge.New(base, hedge.WithHedgeable(func(*http.Request) bool { return true }))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for percent := 0.0; ; percent = 100 - percent {
			select {
			case <-stop:
				return
			default:
			}
			assert.NoError(t, tr.Update(func(c *hedge.Config) { c.BudgetPercent = percent }))
		}
	})
	for range 30_000 {
		req := request(t, t.Context(), "POST", site, &closing{Reader: strings.NewReader(strings.Repeat("x", size))})
		req.ContentLength = size
		_, err := tr.RoundTrip(req)
		require.NoError(t, err)
	}
	assert.Zero(t, shared.Load(), "attempts share nothing")
}
