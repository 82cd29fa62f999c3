package hedge_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/hedgetest"
)

// An answerFunc answers attempt n of the requests to a hedgetest.RoundTripper.
type answerFunc = func(*http.Request, int) (*http.Response, error)

// saying adds a header to what answer answers.
func saying(answer answerFunc, name string) answerFunc {
	return func(req *http.Request, n int) (*http.Response, error) {
		resp, err := answer(req, n)
		if err == nil {
			resp.Header.Set(name, "1")
		}
		return resp, err
	}
}

func TestHedgesToAHostWithALimiterAreMarked(t *testing.T) {
	bubble(t, func(t *testing.T, rt *hedgetest.RoundTripper) {
		slow := after(rt, time.Second, 5*ms)
		tr := warm(t, rt, hedge.WithBudgetPercent(100), hedge.WithAttemptHeader("x-copy"))
		marks := func(answer answerFunc) [3]string {
			rt.Forget()
			rt.Answer = answer
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.Equal(t, "answer 1", text(t, resp))
			sent := rt.Sent()
			require.Len(t, sent, 2)
			return [3]string{sent[0].Header.Get("Hedge-Attempt"), sent[1].Header.Get("Hedge-Attempt"), sent[1].Header.Get("X-Copy")}
		}
		assert.Equal(t, [3]string{"", "", "1"}, marks(saying(slow, "Hedge-Limit")), "nothing is known before the first answer")
		assert.Equal(t, [3]string{"", "1", "1"}, marks(slow))
		assert.Equal(t, [3]string{"", "", "1"}, marks(slow), "the last answer said nothing of a Limiter")
	})
}

func TestHedgeThatIsTurnedAwayHasLost(t *testing.T) {
	for name, opts := range map[string][]hedge.Option{
		"by default":               nil,
		"though 503 is an answer":  {hedge.WithFailureStatus(404)},
		"though all are an answer": {hedge.WithFailureFunc(func(*http.Response) bool { return false })},
		"with first byte":          {hedge.WithFirstByte()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *hedgetest.RoundTripper) {
				rec := new(recorder)
				tr := warm(t, rt, append(opts, hedge.WithMaxHedges(1), hedge.WithObserver(rec))...)
				rec.take()
				before := tr.Snapshot().Keys[0]
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == 0 {
						return after(rt, 100*ms)(req, n)
					}
					require.NoError(t, hedgetest.Sleep(req.Context(), ms))
					resp := rt.Response(req, 503, "")
					resp.Header.Set("Hedge-Refused", "1")
					resp.Header.Set("Retry-After", "10")
					return resp, nil
				}
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, "answer 0", text(t, resp))
				assert.Contains(t, rec.take(), "lost 1 after 1")
				now := tr.Snapshot().Keys[0]
				assert.Zero(t, now.PushBackShare)
				assert.EqualValues(t, 1, now.Hedges)
				assert.Zero(t, now.Wins)
				assert.Less(t, now.Budget, before.Budget, "it was a request, so it is paid for")
			})
		})
	}
}

// A proxy passes on what a Limiter behind it says, and so its clients mark their hedges.
func TestMarkedHedgeThatAProxyPassesOnIsSentOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *hedgetest.RoundTripper) {
		tr := warm(t, rt)
		pass := func(answer answerFunc) *http.Response {
			rt.Forget()
			rt.Answer = answer
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site, nil)
			require.NoError(t, err)
			req.Header.Set("Hedge-Attempt", "1")
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			text(t, resp)
			require.Len(t, rt.Sent(), 1)
			assert.Equal(t, "1", rt.Sent()[0].Header.Get("Hedge-Attempt"))
			return resp
		}
		pass(after(rt, time.Second, 5*ms))
		resp := pass(saying(func(req *http.Request, _ int) (*http.Response, error) { return rt.Response(req, 503, ""), nil }, "Hedge-Refused"))
		assert.Equal(t, "1", resp.Header.Get("Hedge-Refused"), "for the client whose hedge it is")
		assert.Zero(t, tr.Snapshot().Keys[0].PushBackShare, "primaries are not refused")
	})
}

func TestWhatSaysRefusedComesOutAsItIsUnlessItIsAHedges503(t *testing.T) {
	bubble(t, func(t *testing.T, rt *hedgetest.RoundTripper) {
		status := func(code int) answerFunc {
			return saying(func(req *http.Request, n int) (*http.Response, error) { return rt.Response(req, code, "body"), nil }, "Hedge-Refused")
		}
		tr := warm(t, rt, hedge.WithMaxHedges(1))
		rt.Answer = status(503)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("Hedge-Refused"))
		assert.Equal(t, "body", text(t, resp))
		assert.Positive(t, tr.Snapshot().Keys[0].PushBackShare, "a primary's 503 is push-back, whatever else it says")

		rt.Forget()
		rt.Answer = saying(after(rt, time.Second, 5*ms), "Hedge-Refused")
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", text(t, resp), "200 is an answer, whatever else it says")

		rt.Forget()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return status(503)(req, n)
			}
			require.NoError(t, hedgetest.Sleep(req.Context(), time.Second))
			return rt.Response(req, 500, "broken"), nil
		}
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, 500, resp.StatusCode, "if all fail, the caller gets what the primary got")
		assert.Equal(t, "broken", text(t, resp))
	})
}

func TestGRPCHedgeThatIsTurnedAwayHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := new(recorder)
		c := warmCaller(t, read, hedge.WithMaxHedges(1), hedge.WithObserver(rec), hedge.WithNonFatalCodes(codes.Aborted))
		rec.take()
		i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if n == 0 {
				return in(100*ms)(ctx, n, reply, opts)
			}
			for _, o := range opts {
				if o, ok := o.(grpc.TrailerCallOption); ok {
					*o.TrailerAddr = metadata.Pairs("hedge-refused", "1", "grpc-retry-pushback-ms", "3600000")
				}
			}
			return status.Error(codes.Unavailable, "full")
		}}
		got, err := c.get(t.Context(), i)
		require.NoError(t, err)
		assert.Equal(t, "answer 0", got)
		assert.Contains(t, rec.take(), "lost 1 after 0")
		assert.EqualValues(t, 1, c.stats.HedgesSent.Load())

		// The same from a server that a primary asks is an answer like any other.
		refuses := &invoker{answer: func(context.Context, int, any, []grpc.CallOption) error {
			return status.Error(codes.Unavailable, "full")
		}}
		_, err = c.get(t.Context(), refuses)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, 1, refuses.n)
	})
}

// A limited gRPC server, a primary that waits there, and a hedge that finds the house full.
func TestGRPCHedgesThatALimiterTurnsAwayHaveLost(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			c, rec := newCounter(), new(recorder)
			target := serveGRPC(t, c, c.options()...)
			crowd := testpb.NewTestServiceClient(dial(t, target))
			var all sync.WaitGroup
			for i := range 5 {
				all.Go(func() { _, _ = call(t.Context(), crowd) })
				c.holds(t, 1, int64(i))
			}
			client := connected(t, target, hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(rec))
			all.Go(func() {
				_, err := call(hedge.WithDelay(t.Context(), 10*ms), client)
				assert.NoError(t, err)
			})
			require.Eventually(t, func() bool { return c.limit.Snapshot().Refused == 1 }, 10*time.Second, ms)
			var events []string // the primary goes on once the client knows
			require.Eventually(t, func() bool {
				events = append(events, rec.take()...)
				return strings.Contains(fmt.Sprint(events), "lost 1 after")
			}, 10*time.Second, ms, "%v", events)
			close(c.goOn)
			all.Wait()
			assert.EqualValues(t, 6, c.begun.Load())
		})
	}
}

func TestLoserBehindALimiterIsCancelledOverHTTP1(t *testing.T) {
	for _, limited := range []bool{true, false} {
		t.Run(map[bool]string{true: "behind a Limiter", false: "without"}[limited], func(t *testing.T) {
			gone, hang := make(chan struct{}), make(chan struct{})
			h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Slow") != "" {
					select {
					case <-r.Context().Done():
						close(gone)
					case <-hang:
					}
					return
				}
				_, _ = io.WriteString(w, "answer")
			}))
			if limited {
				h = hedge.NewLimiter(100).Handler(h)
			}
			s := serve(t, "HTTP/1.1", h.ServeHTTP)
			below := base(t, s)
			slowly := roundTripper(func(req *http.Request) (*http.Response, error) {
				if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number == 0 && req.URL.Path == "/slow" {
					req = req.Clone(req.Context())
					req.Header.Set("Slow", "yes")
				}
				return below.RoundTrip(req)
			})
			tr := hedge.New(slowly, hedge.WithLinger(time.Hour), hedge.WithMaxHedges(1))
			teach(t, tr, s.URL)
			// Later than a connection can be closed that was in use just before.
			got, err := fetch(hedge.WithDelay(t.Context(), 150*ms), tr, s.URL+"/slow")
			require.NoError(t, err)
			assert.Equal(t, "answer", got)
			if limited {
				select {
				case <-gone:
				case <-time.After(10 * time.Second):
					t.Error("the loser was not cancelled")
				}
			} else {
				select {
				case <-gone:
					t.Error("the loser was cancelled")
				case <-time.After(300 * ms):
				}
			}
			close(hang)
		})
	}
}
