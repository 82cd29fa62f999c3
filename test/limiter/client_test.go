package limiter_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// An answerFunc answers attempt n of the requests to a doubles.RoundTripper.
type answerFunc = func(*http.Request, int) (*http.Response, error)

// saying returns an answerFunc that adds a header to the responses of answer.
func saying(answer answerFunc, name string) answerFunc {
	return func(req *http.Request, n int) (*http.Response, error) {
		resp, err := answer(req, n)
		if err == nil {
			resp.Header.Set(name, "1")
		}
		return resp, err
	}
}

func TestTransportMarksHedgesToHostWithLimiter(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
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
		assert.Equal(t, [3]string{"", "", "1"}, marks(saying(slow, "Hedge-Limit")), "no Limiter is known before the first answer")
		assert.Equal(t, [3]string{"", "1", "1"}, marks(slow))
		assert.Equal(t, [3]string{"", "", "1"}, marks(slow), "the last answer did not come from a Limiter")
	})
}

func TestRefusedHedgeHasLost(t *testing.T) {
	for name, opts := range map[string][]hedge.HTTPOption{
		"by default":               nil,
		"though 503 is an answer":  {hedge.WithFailureStatus(404)},
		"though all are an answer": {hedge.WithFailureFunc(func(*http.Response) bool { return false })},
		"with first byte":          {hedge.WithFirstByte()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rec := new(recorder)
				tr := warm(t, rt, append(opts, hedge.WithMaxHedges(1), hedge.WithObserver(rec))...)
				rec.Take()
				before := tr.Snapshot().Keys[0]
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == 0 {
						return after(rt, 100*ms)(req, n)
					}
					require.NoError(t, doubles.Sleep(req.Context(), ms))
					resp := rt.Response(req, 503, "")
					resp.Header.Set("Hedge-Refused", "1")
					resp.Header.Set("Retry-After", "10")
					return resp, nil
				}
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, "answer 0", text(t, resp))
				assert.Contains(t, rec.Take(), "lost 1 after 1")
				now := tr.Snapshot().Keys[0]
				assert.Zero(t, now.PushBackShare)
				assert.EqualValues(t, 1, now.Hedges)
				assert.Zero(t, now.Wins)
				assert.Less(t, now.Budget, before.Budget, "the hedge was sent, so it costs a token")
			})
		})
	}
}

// TestProxyForwardsMarkedHedgeOnce sends requests that are marked as hedges, as a proxy gets them: it forwards the header of a Limiter, so
// its clients mark their hedges.
func TestProxyForwardsMarkedHedgeOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
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
		assert.Equal(t, "1", resp.Header.Get("Hedge-Refused"), "the refusal is for the client of the proxy")
		assert.Zero(t, tr.Snapshot().Keys[0].PushBackShare, "primaries are not refused")
	})
}

func TestOnlyHedgeWith503CountsAsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
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
		assert.Positive(t, tr.Snapshot().Keys[0].PushBackShare, "the 503 of a primary is pushback, even with the header")

		rt.Forget()
		rt.Answer = saying(after(rt, time.Second, 5*ms), "Hedge-Refused")
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", text(t, resp), "200 is an answer, even with the header")

		rt.Forget()
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return status(503)(req, n)
			}
			require.NoError(t, doubles.Sleep(req.Context(), time.Second))
			return rt.Response(req, 500, "broken"), nil
		}
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, 500, resp.StatusCode, "if all attempts fail, the caller gets the result of the primary")
		assert.Equal(t, "broken", text(t, resp))
	})
}
