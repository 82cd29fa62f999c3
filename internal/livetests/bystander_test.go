package livetests_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// bystanders is how many POSTs, and how many GETs, are sent beside hedged GETs. The full
// size is HEDGE_TEST_BYSTANDERS=200000.
func bystanders(t *testing.T) int64 {
	if v := os.Getenv("HEDGE_TEST_BYSTANDERS"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		require.NoError(t, err)
		return n
	}
	if testing.Short() {
		return 1_000
	}
	return 4_000
}

// keepProcessorsBusy runs HEDGE_TEST_SPINNERS goroutines that compute until the test ends. With GOMAXPROCS above that
// number, each thread then waits long for a processor.
func keepProcessorsBusy(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("HEDGE_TEST_SPINNERS"))
	for range n {
		go func() {
			for t.Context().Err() == nil {
			}
		}()
	}
}

// net/http (Go 1.26) can fail the next request on a connection when an HTTP/1.1 request is
// cancelled just as its empty response arrives. Hedging cancels often; neither the requests
// of the same Transport that are not hedged, nor those of a client that shares its base,
// may see it. The server stalls, and kills the connections of requests that ask for it:
// only those may fail.
func TestHedgingHarmsNobodyOnTheSameBase(t *testing.T) {
	total := bystanders(t)
	keepProcessorsBusy(t)
	for _, linger := range []time.Duration{0, 3 * time.Millisecond} { // one that ends while most losers are served
		t.Run(fmt.Sprint("linger ", linger), func(t *testing.T) {
			s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Header.Get("Kill") != "" {
					panic(http.ErrAbortHandler)
				}
				d := time.Duration(500+rand.IntN(600)) * time.Microsecond
				if rand.IntN(200) == 0 {
					d = 10 * time.Millisecond
				}
				time.Sleep(d)
				w.WriteHeader(http.StatusNoContent)
			})
			var stats *hedge.Stats
			tr := hedge.New(base(t, s), hedge.WithLinger(linger), hedge.WithMinDelay(0), hedge.WithStats(&stats),
				hedge.WithBudgetPercent(300), hedge.WithPercentile(0.5))
			plain := tr.WrappedRoundTripper()
			teach(t, tr, s.URL)

			var posts, gets, failed atomic.Int64
			var first atomic.Value
			send := func(rt http.RoundTripper, method string, kill bool) {
				req, err := http.NewRequest(method, s.URL, nil)
				if method == "POST" {
					req, err = http.NewRequest(method, s.URL, strings.NewReader("charge $10"))
				}
				if err != nil {
					panic(err)
				}
				if kill {
					req.Header.Set("Kill", "yes")
				}
				if method == "GET" && rt == http.RoundTripper(tr) {
					req = req.WithContext(hedge.WithDelay(req.Context(), 900*time.Microsecond))
				}
				resp, err := rt.RoundTrip(req)
				switch {
				case err == nil:
					resp.Body.Close()
				case !kill || errors.Is(err, hedge.ErrLost):
					failed.Add(1)
					first.CompareAndSwap(nil, fmt.Sprintf("%s by %T: %v", method, rt, err))
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(240+total/200)*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { // what cancels
					for posts.Load() < total && ctx.Err() == nil {
						send(tr, "GET", rand.IntN(500) == 0)
					}
				})
				wg.Go(func() { // who must not notice
					for posts.Add(1) <= total && ctx.Err() == nil {
						send(tr, "POST", rand.IntN(500) == 0)
						gets.Add(1)
						send(plain, "GET", rand.IntN(500) == 0)
					}
				})
			}
			wg.Wait()
			assert.NoError(t, ctx.Err(), "too slow")
			t.Logf("%d POSTs and %d GETs beside %d hedges on one base: %d failed", total, gets.Load(), stats.HedgesSent.Load(), failed.Load())
			assert.Zero(t, failed.Load(), "first: %v", first.Load())
			assert.Greater(t, stats.HedgesSent.Load(), total/20)
		})
	}
}
