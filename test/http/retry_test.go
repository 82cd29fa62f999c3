package http_test

import (
	"context"
	"math/rand/v2"
	"net/http"
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

func TestBudgetPaysForRetries(t *testing.T) {
	b := hedge.NewBudget(10, 2)
	assert.True(t, b.Spend())
	assert.True(t, b.Spend())
	assert.False(t, b.Spend(), "it is empty")
	b.Refund()
	assert.EqualValues(t, 1, b.Tokens())
	b.Refund()
	b.Refund()
	assert.EqualValues(t, 2, b.Tokens(), "it holds no more than the burst")
	assert.False(t, hedge.NewBudget(0, 5).Spend(), "a share of 0 pays for nothing")

	for _, none := range []*hedge.Budget{nil, new(hedge.Budget)} {
		assert.False(t, none.Spend())
		none.Refund()
		assert.Zero(t, none.Tokens())
	}
}

// retryRecorder records whether attempts and calls were reported as retries.
type retryRecorder struct {
	hedge.NopObserver
	mu                     sync.Mutex
	started, ended, closed []bool
}

func (r *retryRecorder) AttemptStart(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, a.IsRetry)
}

func (r *retryRecorder) AttemptDone(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, a.IsRetry)
}

func (r *retryRecorder) RequestDone(_ context.Context, _ hedge.KeyInfo, result hedge.RequestResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = append(r.closed, result.IsRetry)
}

func TestMarkedRetriesEarnNothing(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		budget := hedge.NewBudget(50, 10)
		var stats *hedge.Stats
		tr := warm(t, rt, hedge.WithBudget(budget), hedge.WithStats(&stats))
		rt.Answer = quick(rt)
		for range 10 {
			require.True(t, budget.Spend())
		}
		send := func(ctx context.Context) {
			_, err := fetch(ctx, tr, site)
			require.NoError(t, err)
		}
		marked := hedge.MarkRetry(t.Context())
		for range 10 {
			send(marked)
		}
		assert.Zero(t, budget.Tokens())
		assert.EqualValues(t, 10, stats.Retries.Load())
		for range 10 {
			send(t.Context())
		}
		assert.EqualValues(t, 5, budget.Tokens())
		assert.EqualValues(t, 10, stats.Retries.Load())
		assert.EqualValues(t, 40, stats.TotalRequests.Load())
		assert.EqualValues(t, 40, tr.Snapshot().Keys[0].Requests, "retries are requests")
	})
}

// TestMarkedRetriesEarnNothingForTheirHost is about the budgets that each key or host has without WithBudget.
func TestMarkedRetriesEarnNothingForTheirHost(t *testing.T) {
	for name, opts := range map[string][]hedge.HTTPOption{
		"key":   nil,
		"route": {hedge.WithRoute("/item", hedge.Policy{BudgetPercent: 5})},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = after(rt, usual)
				tr := hedge.New(rt, append(opts, hedge.WithBurst(0), hedge.WithMaxHedges(1))...)
				warmUp(t, tr)
				rt.Forget()
				rt.Answer = after(rt, time.Second, usual)
				_, err := fetch(t.Context(), tr, site)
				require.NoError(t, err)
				key := func() hedge.KeySnapshot { all := tr.Snapshot().Keys; return all[len(all)-1] }
				left := key().Budget
				require.Less(t, left, 0.5, "a hedge took the only token")
				rt.Answer = quick(rt)
				for range 50 {
					_, err := fetch(hedge.MarkRetry(t.Context()), tr, site)
					require.NoError(t, err)
				}
				assert.InDelta(t, left, key().Budget, 1e-9)
				assert.EqualValues(t, tr.Snapshot().Stats.TotalRequests, key().Requests, "retries are requests")
			})
		})
	}
}

func TestObserversSeeRetries(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rec := new(retryRecorder)
		tr := warm(t, rt, hedge.WithObserver(rec), hedge.WithMaxHedges(1))
		*rec = retryRecorder{}
		rt.Answer = after(rt, time.Second, usual)
		_, err := fetch(hedge.MarkRetry(t.Context()), tr, site)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, []bool{true, false}, rec.started, "the hedge of a retry is a hedge")
		assert.ElementsMatch(t, []bool{true, false}, rec.ended)
		assert.Equal(t, []bool{true}, rec.closed)

		*rec = retryRecorder{}
		rt.Answer = quick(rt)
		for _, ctx := range []context.Context{hedge.MarkRetry(t.Context()), t.Context()} {
			resp, err := tr.RoundTrip(request(t, ctx, http.MethodPost, site, nil)) // it is not hedged
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			_, err = fetch(ctx, tr, site)
			require.NoError(t, err)
		}
		want := []bool{true, true, false, false}
		assert.Equal(t, [][]bool{want, want, want}, [][]bool{rec.started, rec.ended, rec.closed})
	})
}

func TestMarkOfRetryHoldsWithinAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		var inner *hedge.Stats
		tr := hedge.New(hedge.New(rt, hedge.WithStats(&inner)))
		_, err := fetch(hedge.AllowHedging(hedge.MarkRetry(t.Context())), tr, site)
		require.NoError(t, err)
		assert.EqualValues(t, 1, inner.Retries.Load())
		marks := 0
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.IsRetry {
				marks++
			}
			return rt.Response(req, 200, ""), nil
		}
		tr = hedge.New(rt)
		warmUp(t, tr)
		assert.Zero(t, marks)
		_, err = fetch(hedge.MarkRetry(t.Context()), tr, site)
		require.NoError(t, err)
		assert.Equal(t, 1, marks)
	})
}

// TestRetriesAndHedgesStayWithinOneBudget plays outages in which a client that hedges is used by a retrier that pays from the
// same budget.
func TestRetriesAndHedgesStayWithinOneBudget(t *testing.T) {
	const percent, burst, tries = 20, 10, 4
	for name, outage := range map[string]func(rng *rand.Rand) (took time.Duration, failed bool){
		"refused": func(*rand.Rand) (time.Duration, bool) { return time.Millisecond, true },
		"slow":    func(*rand.Rand) (time.Duration, bool) { return 40 * usual, true },
		"half slow, half failed": func(rng *rand.Rand) (time.Duration, bool) {
			return time.Duration(1+40*rng.IntN(2)) * usual, rng.IntN(2) == 0
		},
		"a third fails late": func(rng *rand.Rand) (time.Duration, bool) {
			if rng.IntN(3) > 0 {
				return usual, false
			}
			return 10 * usual, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					requests, calls, retries atomic.Int64
					isOut                    atomic.Bool
					mu                       sync.Mutex
					rng                      = rand.New(rand.NewPCG(1, 2))
				)
				rt := new(doubles.RoundTripper)
				rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
					requests.Add(1)
					took, failed := usual, false
					if isOut.Load() {
						mu.Lock()
						took, failed = outage(rng)
						mu.Unlock()
					}
					if err := doubles.Sleep(req.Context(), took); err != nil || failed {
						return nil, errDown
					}
					return rt.Response(req, 200, ""), nil
				}
				budget := hedge.NewBudget(percent, burst)
				tr := hedge.New(rt, hedge.WithBudget(budget))
				call := func() {
					calls.Add(1)
					ctx := t.Context()
					for try := 1; ; try++ {
						_, err := fetch(ctx, tr, site)
						if err == nil || try == tries || !budget.Spend() {
							return
						}
						retries.Add(1)
						ctx = hedge.MarkRetry(t.Context())
					}
				}
				callFor := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * ms) {
						go call()
					}
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				callFor(5 * time.Second)
				isOut.Store(true)
				callFor(20 * time.Second)
				isOut.Store(false)
				callFor(time.Second)

				stats := tr.Snapshot().Stats
				assert.EqualValues(t, retries.Load(), stats.Retries)
				assert.Positive(t, stats.Retries)
				assert.Equal(t, requests.Load(), calls.Load()+stats.Retries+stats.HedgesSent)
				most := float64(calls.Load())*(1+percent/100.0) + burst
				assert.LessOrEqual(t, float64(requests.Load()), most)
				assert.Greater(t, float64(requests.Load()), 0.9*most-burst, "the budget was used")
				t.Logf("%d calls: %d retries, %d hedges, %.3f requests per call", calls.Load(), stats.Retries, stats.HedgesSent, float64(requests.Load())/float64(calls.Load()))
			})
		})
	}
}
