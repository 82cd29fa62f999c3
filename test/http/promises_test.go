package http_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
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

// The rules for every protocol, each tested with all statuses, codes and failures.

// respond returns a response as it comes over HTTP/1.1 or HTTP/2.
func respond(rt *doubles.RoundTripper, req *http.Request, proto, status int, body string) *http.Response {
	resp := rt.Response(req, status, body)
	resp.ProtoMajor = proto
	return resp
}

// scripted is a server that answers every attempt after the usual time, unless the script sets the outcome of each
// attempt of a call.
type scripted struct {
	rt     *doubles.RoundTripper
	proto  int
	status atomic.Pointer[[2]scriptedAnswer] // the primary, its hedges; nil: all is usual
}

type scriptedAnswer struct {
	status int // 0: an error
	after  time.Duration
}

func (s *scripted) answer(req *http.Request, _ int) (*http.Response, error) {
	what, a := scriptedAnswer{200, usual}, 0
	if now := s.status.Load(); now != nil {
		info, _ := hedge.AttemptFromContext(req.Context())
		a = info.Number
		what = now[min(a, 1)]
	}
	if err := doubles.Sleep(req.Context(), what.after); err != nil {
		return nil, err
	}
	if what.status == 0 {
		return nil, errDown
	}
	return respond(s.rt, req, s.proto, what.status, fmt.Sprint("attempt ", a)), nil
}

// racing returns a client that has learned a host which speaks that version of HTTP, and its script.
func racing(t *testing.T, rt *doubles.RoundTripper, proto int, opts ...hedge.HTTPOption) (*hedge.Transport, *scripted) {
	s := &scripted{rt: rt, proto: proto}
	rt.Answer = s.answer
	tr := hedge.New(rt, append(opts, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300), hedge.WithBurst(time.Hour))...)
	warmUp(t, tr)
	return tr, s
}

// call makes one call whose primary and hedges end as the script says. A hedge is due after 10 ms.
func (s *scripted) call(t *testing.T, tr *hedge.Transport, primary, hedged scriptedAnswer) (code, attempt int, took time.Duration) {
	s.status.Store(&[2]scriptedAnswer{primary, hedged})
	defer s.status.Store(nil)
	start := time.Now()
	resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 10*ms), "GET", site, nil))
	took = time.Since(start)
	if err != nil {
		require.ErrorIs(t, err, errDown)
		return 0, 0, took
	}
	_, err = fmt.Sscanf(text(t, resp), "attempt %d", &attempt)
	require.NoError(t, err)
	return resp.StatusCode, attempt, took
}

func TestR1OnlySuccessOfHedgeEndsCall(t *testing.T) {
	for _, proto := range []int{1, 2} {
		for name, opts := range map[string][]hedge.HTTPOption{
			"as it is": nil,
			"failures": {hedge.WithFailureStatus(404, 503)},
			"answers":  {hedge.WithAnswerStatus(404, 503)},
			"both":     {hedge.WithFailureStatus(404), hedge.WithAnswerStatus(404, 503)},
		} {
			t.Run(fmt.Sprint("HTTP/", proto, " ", name), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					var stats *hedge.Stats
					tr, s := racing(t, rt, proto, append(opts, hedge.WithLinger(0), hedge.WithStats(&stats))...)
					for code := 100; code <= 999; code++ {
						ends := code >= 200 && code <= 399 || (name == "answers" || name == "both") && (code == 404 || code == 503)
						before := stats.AnswersNotTaken.Load()
						got, attempt, took := s.call(t, tr, scriptedAnswer{200, 50 * ms}, scriptedAnswer{code, 5 * ms})
						if ends {
							require.Equal(t, []any{code, 1, 15 * ms}, []any{got, attempt, took})
						} else {
							require.Equal(t, []any{200, 0, 50 * ms}, []any{got, attempt, took}, "%d of a hedge", code)
						}
						counted := stats.AnswersNotTaken.Load() - before
						require.LessOrEqual(t, counted, int64(1))
						require.False(t, ends && counted > 0, "%d", code)
						if name == "as it is" && slices.Contains([]int{101, 401, 404, 501, 600}, code) {
							require.EqualValues(t, 1, counted, "%d", code)
						}
						time.Sleep(time.Second)
					}
				})
			})
		}
	}
}

func TestR1ResultOfPrimaryEndsCallUnlessItWaits(t *testing.T) {
	waits := func(code int) bool {
		return slices.Contains([]int{408, 421, 425, 429}, code) || code >= 500 && code <= 599 && code != 501 && code != 505
	}
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr, s := racing(t, rt, 2)
		for code := 100; code <= 999; code++ {
			if code == 429 || code == 503 {
				continue // push-back: hedging pauses
			}
			for _, hedged := range []int{200, 404, 500, 0} {
				got, attempt, took := s.call(t, tr, scriptedAnswer{code, 15 * ms}, scriptedAnswer{hedged, 7 * ms})
				if waits(code) && hedged == 200 {
					require.Equal(t, []any{200, 1, 17 * ms}, []any{got, attempt, took}, "%d", code)
					continue
				}
				require.Equal(t, []any{code, 0}, []any{got, attempt}, "%d and a hedge's %d", code, hedged)
				if waits(code) {
					require.Equal(t, 17*ms, took)
				} else {
					require.Equal(t, 15*ms, took)
				}
			}
			time.Sleep(time.Second)
		}
	})
}

func TestR1OnlySuccessOfHedgeEndsDo(t *testing.T) {
	fails := func(context.Context) error { return io.ErrUnexpectedEOF }
	synctest.Test(t, func(t *testing.T) {
		for name, do := range doers(t) {
			start := time.Now()
			v, err := do(func(ctx context.Context, n int) (int, error) {
				if n > 0 {
					return n, fails(ctx)
				}
				return 7, doubles.Sleep(ctx, 50*ms)
			})
			require.NoError(t, err, name)
			assert.Equal(t, 7, v)
			assert.Equal(t, 50*ms, time.Since(start))
		}
	})
}

// doers returns Do and DoDetached, of which a hedge is due after 10 ms.
func doers(t *testing.T) map[string]func(f func(ctx context.Context, n int) (int, error)) (int, error) {
	h := hedge.NewHedger(hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300), hedge.WithBurst(time.Hour))
	number := func(f func(context.Context, int) (int, error)) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			a, _ := hedge.AttemptFromContext(ctx)
			return f(ctx, a.Number)
		}
	}
	for range 20 {
		_, err := hedge.Do(t.Context(), h, "db", func(ctx context.Context) (int, error) { return 0, doubles.Sleep(ctx, usual) })
		require.NoError(t, err)
	}
	return map[string]func(f func(ctx context.Context, n int) (int, error)) (int, error){
		"Do": func(f func(context.Context, int) (int, error)) (int, error) {
			return hedge.Do(hedge.WithDelay(t.Context(), 10*ms), h, "db", number(f))
		},
		"DoDetached": func(f func(context.Context, int) (int, error)) (int, error) {
			return hedge.DoDetached(hedge.WithDelay(t.Context(), 10*ms), h, "db", number(f), nil)
		},
	}
}

// narrow is a RoundTripper with few places. A response holds one until its body has ended or is
// closed, as with MaxConnsPerHost, and the hooks of httptrace are called as net/http calls them.
type narrow struct {
	places chan struct{}
	answer func(req *http.Request) (*http.Response, error)
}

func (n *narrow) RoundTrip(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace != nil && trace.GetConn != nil {
		trace.GetConn("catalog.test:80")
	}
	select {
	case n.places <- struct{}{}:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	leave := sync.OnceFunc(func() { <-n.places })
	resp, err := n.answer(req)
	if err != nil {
		leave()
		return nil, err
	}
	resp.Body = &placed{resp.Body, leave}
	return resp, nil
}

// placed is a body that gives a place back.
type placed struct {
	io.ReadCloser
	leave func()
}

func (b *placed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.leave()
	}
	return n, err
}

func (b *placed) Close() error {
	b.leave()
	return b.ReadCloser.Close()
}

func TestR2FailureAndHedgeDoNotWaitForEachOther(t *testing.T) {
	for _, proto := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			busy := false
			n := &narrow{places: make(chan struct{}, 1), answer: func(req *http.Request) (*http.Response, error) {
				if !busy {
					return respond(rt, req, proto, 200, ""), doubles.Sleep(req.Context(), usual)
				}
				return respond(rt, req, proto, 503, "busy"), doubles.Sleep(req.Context(), 20*usual)
			}}
			tr := hedge.New(n)
			warmUp(t, tr)
			busy = true
			start := time.Now()
			resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 5*usual), "GET", site, nil))
			require.NoError(t, err)
			assert.Equal(t, 20*usual, time.Since(start), "the hedge waits for the place of the failure, and is cancelled")
			assert.Equal(t, 503, resp.StatusCode)
			assert.Equal(t, "busy", text(t, resp))
			assert.Empty(t, n.places)
		})
	}
}

func TestR2HeldFailureReleasesConnection(t *testing.T) {
	for _, size := range []int{0, 1, 60_000, 64 << 10, 64<<10 + 1, 1 << 20} {
		for _, known := range []bool{true, false} { // the length
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				const long = time.Second
				_, s := racing(t, rt, 2)
				body := strings.Repeat("x", size)
				var held *http.Response
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					if info, _ := hedge.AttemptFromContext(req.Context()); info.Number > 0 || s.status.Load() == nil {
						return rt.RoundTrip(req)
					}
					require.NoError(t, doubles.Sleep(req.Context(), 100*ms))
					held = rt.Response(req, 503, body)
					held.Uncompressed, held.Trailer = true, http.Header{"Sum": nil}
					if !known {
						held.ContentLength = -1
					}
					return held, nil
				})
				tr := hedge.New(base, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300))
				warmUp(t, tr)
				s.status.Store(&[2]scriptedAnswer{{}, {200, long}})
				open := rt.OpenBodies()
				start := time.Now()
				var resp *http.Response
				var took time.Duration
				done := make(chan struct{})
				go func() {
					defer close(done)
					var err error
					resp, err = tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 95*ms), "GET", site, nil))
					took = time.Since(start)
					assert.NoError(t, err)
				}()
				time.Sleep(102 * ms)
				synctest.Wait()
				want := 105 * ms // the hedge has had the usual time
				if size > 64<<10 {
					want = 100 * ms
				} else {
					assert.Equal(t, open, rt.OpenBodies(), "the body is closed while the failure is held")
				}
				<-done
				assert.InDelta(t, want, took, float64(ms), "%d", size)
				assert.Equal(t, held.ContentLength, resp.ContentLength)
				assert.True(t, resp.Uncompressed)
				assert.Equal(t, http.Header{"Sum": nil}, resp.Trailer)
				held.Trailer = http.Header{"Sum": {"1"}} // as at the end of a body
				assert.Equal(t, body, text(t, resp))
				assert.Equal(t, http.Header{"Sum": {"1"}}, resp.Trailer)
			})
		}
	}
}

// tricklingBody gives a byte after each pause, and ends with its context or, if it is deaf, by Close.
type tricklingBody struct {
	ctx    context.Context
	pause  time.Duration
	left   int
	deaf   bool
	closed chan struct{}

	reading, overlapped, closes atomic.Int32
}

func (b *tricklingBody) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	done := b.ctx.Done()
	if b.deaf {
		done = nil
	}
	select {
	case <-time.After(b.pause):
	case <-done:
		return 0, context.Cause(b.ctx)
	case <-b.closed:
		return 0, errClosed
	}
	if b.left--; b.left < 0 {
		return 0, io.EOF
	}
	p[0] = 'x'
	return 1, nil
}

func (b *tricklingBody) Close() error {
	b.overlapped.Add(b.reading.Load())
	if b.closes.Add(1) == 1 {
		close(b.closed)
	}
	return nil
}

func TestR2BodyReadAtBoundIsReturned(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, resp *http.Response, body *tricklingBody){
		"read": func(t *testing.T, resp *http.Response, body *tricklingBody) {
			start := time.Now()
			assert.Equal(t, strings.Repeat("x", 20), text(t, resp))
			assert.InDelta(t, 21*50*ms, time.Since(start), float64(50*ms))
		},
		"closed": func(t *testing.T, resp *http.Response, body *tricklingBody) {
			require.NoError(t, resp.Body.Close())
			synctest.Wait()
			_, err := resp.Body.Read(make([]byte, 1))
			assert.ErrorIs(t, err, http.ErrBodyReadAfterClose)
			assert.Zero(t, body.overlapped.Load(), "Close does not run beside Read")
		},
		"closed, and deaf": func(t *testing.T, resp *http.Response, body *tricklingBody) {
			require.NoError(t, resp.Body.Close())
		},
		"read in part": func(t *testing.T, resp *http.Response, body *tricklingBody) {
			_, err := resp.Body.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				var body *tricklingBody
				slow := false
				tr := hedge.New(roundTripper(func(req *http.Request) (*http.Response, error) {
					if !slow {
						return respond(rt, req, 2, 200, ""), doubles.Sleep(req.Context(), usual)
					}
					if info, _ := hedge.AttemptFromContext(req.Context()); info.Number > 0 {
						return nil, doubles.Sleep(req.Context(), time.Hour)
					}
					time.Sleep(15 * ms)
					body = &tricklingBody{ctx: req.Context(), pause: 50 * ms, left: 20, closed: make(chan struct{})}
					if name == "closed, and deaf" {
						body.deaf, body.pause = true, time.Hour
					}
					return &http.Response{StatusCode: 503, ProtoMajor: 2, ContentLength: -1, Header: http.Header{}, Body: body}, nil
				}))
				warmUp(t, tr)
				slow = true
				start := time.Now()
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.InDelta(t, 20*ms, time.Since(start), float64(ms), "it does not wait for the body")
				end(t, resp, body)
				time.Sleep(time.Minute)
				assert.EqualValues(t, 1, body.closes.Load(), "it is closed, once")
			})
		})
	}
}

func TestR2HeldBodyEndsWhenHedgeWins(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		_, s := racing(t, rt, 2)
		var body *tricklingBody
		tr := hedge.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			info, _ := hedge.AttemptFromContext(req.Context())
			if info.Number > 0 || s.status.Load() == nil {
				return rt.RoundTrip(req)
			}
			time.Sleep(15 * ms)
			body = &tricklingBody{ctx: req.Context(), pause: time.Hour, left: 20, closed: make(chan struct{})}
			return &http.Response{StatusCode: 503, ProtoMajor: 2, ContentLength: -1, Header: http.Header{}, Body: body}, nil
		}), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300))
		warmUp(t, tr)
		code, attempt, took := s.call(t, tr, scriptedAnswer{}, scriptedAnswer{200, 8 * ms})
		assert.Equal(t, []any{200, 1, 18 * ms}, []any{code, attempt, took})
		synctest.Wait()
		assert.EqualValues(t, 1, body.closes.Load())
		assert.Zero(t, body.overlapped.Load())
	})
}

func TestR2ErrorIsHeldForUsualTimeOfHedges(t *testing.T) {
	for _, proto := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr, s := racing(t, rt, proto)
			for _, primary := range []int{0, 500, 502, 504} {
				code, _, took := s.call(t, tr, scriptedAnswer{primary, 15 * ms}, scriptedAnswer{200, time.Hour})
				assert.Equal(t, primary, code)
				assert.InDelta(t, 20*ms, took, float64(ms))
				time.Sleep(time.Minute)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		for name, do := range doers(t) {
			start := time.Now()
			_, err := do(func(ctx context.Context, n int) (int, error) {
				if n > 0 {
					return 0, doubles.Sleep(ctx, time.Hour)
				}
				time.Sleep(15 * ms)
				return 0, errDown
			})
			require.Same(t, errDown, err, name)
			assert.InDelta(t, 20*ms, time.Since(start), float64(ms), name)
		}
	})
}

func TestR2NoHedgeStartsAfterPrimaryHasFailed(t *testing.T) {
	for _, proto := range []int{1, 2} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				return respond(rt, req, proto, 200, ""), doubles.Sleep(req.Context(), usual)
			}
			tr := hedge.New(rt, hedge.WithBudgetPercent(300))
			warmUp(t, tr)
			rt.Forget()
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					time.Sleep(7 * ms)
					return nil, errDown
				}
				return respond(rt, req, proto, 200, ""), doubles.Sleep(req.Context(), 9*ms)
			}
			resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 5*ms), "GET", site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Len(t, rt.Sent(), 2, "the second hedge was due after 10 ms")
		})
	}
}
