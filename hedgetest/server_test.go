package hedgetest_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
)

// each runs a test in a bubble for every protocol, with a server whose handler answers 200 "0123456789", and counts.
func each(t *testing.T, test func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64)) {
	for protocol, start := range protocols {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handled atomic.Int64
				test(t, start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					handled.Add(1)
					w.Header().Set("Protocol", r.Proto)
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(w, "01234")
					_, _ = io.WriteString(w, "56789")
				})), &handled)
			})
		})
	}
}

func TestServerCallsHandler(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		rt := server.Transport()
		for range 3 {
			begun := time.Now()
			resp, body, err := send(t, rt, "POST", "/", strings.Repeat("x", 1<<20))
			require.NoError(t, err)
			assert.Equal(t, "0123456789", body)
			assert.True(t, strings.HasSuffix(t.Name(), resp.Proto), resp.Proto)
			assert.Zero(t, time.Since(begun))
		}
		assert.EqualValues(t, 3, handled.Load())
		assert.Equal(t, 3, server.Attempts())
	})
}

func TestServerAnswers200WithNilHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp, body, err := send(t, hedgetest.NewServer(t, nil).Transport(), "GET", "/", "")
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Empty(t, body)
	})
}

func TestServerAppliesFaultToNthAttempt(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		rt := server.Transport()
		server.At(2, hedgetest.Fault{Status: 503})
		server.At(3, hedgetest.Fault{Delay: 70 * time.Millisecond})
		server.At(4, hedgetest.Fault{Delay: 30 * time.Millisecond, Status: 429})
		server.At(5, hedgetest.Fault{Delay: -1})
		var statuses []int
		var waits []time.Duration
		for range 5 {
			begun := time.Now()
			resp, _, err := send(t, rt, "GET", "/", "")
			require.NoError(t, err)
			statuses, waits = append(statuses, resp.StatusCode), append(waits, time.Since(begun))
		}
		assert.Equal(t, []int{200, 503, 200, 429, 200}, statuses)
		assert.Equal(t, []time.Duration{0, 0, 70 * time.Millisecond, 30 * time.Millisecond, 0}, waits)
		assert.EqualValues(t, 3, handled.Load())
		server.At(1, hedgetest.Fault{Status: 500}) // counts from now on
		resp, _, err := send(t, rt, "GET", "/", "")
		require.NoError(t, err)
		assert.Equal(t, 500, resp.StatusCode)
		assert.Equal(t, 6, server.Attempts())
		assert.Panics(t, func() { server.At(0, hedgetest.Fault{}) })
	})
}

func TestStallLastsUntilClientHasGone(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		server.At(1, hedgetest.Fault{Stall: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://shop.test", strings.NewReader("a body that nobody reads"))
		require.NoError(t, err)
		begun := time.Now()
		_, err = server.Transport().RoundTrip(req)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Hour, time.Since(begun))
		assert.Zero(t, handled.Load())
	})
}

func TestResetIsError(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, _ *atomic.Int64) {
		server.At(1, hedgetest.Fault{Delay: time.Second, Reset: true, Stall: true})
		begun := time.Now()
		_, _, err := send(t, server.Transport(), "GET", "/", "")
		assert.Error(t, err)
		assert.Equal(t, time.Second, time.Since(begun))
		assert.Equal(t, 1, server.Attempts())
	})
}

func TestServerCutsResponseAfterBytesOfFault(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, _ *atomic.Int64) {
		rt := server.Transport()
		server.At(1, hedgetest.Fault{Reset: true, After: 7})
		resp, body, err := send(t, rt, "GET", "/", "")
		assert.Error(t, err)
		assert.Equal(t, "0123456", body)
		assert.Equal(t, 200, resp.StatusCode)

		server.At(1, hedgetest.Fault{Stall: true, After: 5})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", "http://shop.test", nil)
		require.NoError(t, err)
		begun := time.Now()
		resp, err = rt.RoundTrip(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, "01234", string(got))
		assert.Equal(t, time.Minute, time.Since(begun))

		server.At(1, hedgetest.Fault{Stall: true, After: 10})
		_, body, err = send(t, rt, "GET", "/", "")
		assert.NoError(t, err)
		assert.Equal(t, "0123456789", body, "an answer of no more than After comes whole")
	})
}

// TestServerDoesNotCallHandlerForAbsentClient covers requests without a body, with a small body and with a large body.
func TestServerDoesNotCallHandlerForAbsentClient(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		for _, body := range []io.Reader{nil, strings.NewReader("order"), strings.NewReader(strings.Repeat("x", 1<<20))} {
			server.At(1, hedgetest.Fault{Delay: time.Minute})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "POST", "http://shop.test", body)
			require.NoError(t, err)
			_, err = server.Transport().RoundTrip(req)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(time.Hour)
			assert.Zero(t, handled.Load())
		}
		assert.Equal(t, 3, server.Attempts())
	})
}

// TestServerLogsPanicOfHandler has a handler with a mistake, of which a client sees no more than an end.
func TestServerLogsPanicOfHandler(t *testing.T) {
	var logged strings.Builder
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	for _, start := range protocols {
		synctest.Test(t, func(t *testing.T) {
			server := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a mistake") }))
			_, _, err := send(t, server.Transport(), "POST", "/", "")
			assert.Error(t, err)
			server.At(1, hedgetest.Fault{Reset: true})
			_, _, err = send(t, server.Transport(), "POST", "/", "")
			assert.Error(t, err)
			synctest.Wait()
		})
	}
	assert.Equal(t, len(protocols), strings.Count(logged.String(), "panic serving"), "%s", &logged)
	assert.Equal(t, len(protocols), strings.Count(logged.String(), "a mistake"))
}

func TestDelayedRequestKeepsItsBody(t *testing.T) {
	for _, start := range protocols {
		synctest.Test(t, func(t *testing.T) {
			server := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.EqualValues(t, len("order"), r.ContentLength)
				_, _ = io.Copy(w, r.Body)
			}))
			server.At(1, hedgetest.Fault{Delay: time.Minute})
			_, body, err := send(t, server.Transport(), "PUT", "/", "order")
			require.NoError(t, err)
			assert.Equal(t, "order", body)
		})
	}
}

func TestServerClosesWithItsTest(t *testing.T) {
	for _, start := range protocols {
		synctest.Test(t, func(t *testing.T) {
			f := &failures{TB: t}
			server := start(f, nil)
			server.At(1, hedgetest.Fault{Stall: true})
			rt, failed := server.Transport(), make(chan error, 1)
			go func() {
				_, _, err := send(t, rt, "GET", "/", "")
				failed <- err
			}()
			synctest.Wait()
			f.end()
			assert.Error(t, <-failed)
			_, _, err := send(t, rt, "GET", "/", "")
			assert.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// TestWarmSetsHedgeDelays has a server that stalls, over both protocols: the hedges come after once and twice the usual time.
func TestWarmSetsHedgeDelays(t *testing.T) {
	const usual = 10 * time.Millisecond
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		server.At(1, hedgetest.Fault{Stall: true})
		server.At(2, hedgetest.Fault{Stall: true})
		var calls hedgetest.Recorder
		rt := hedge.New(server.Transport(), hedge.WithObserver(&calls))
		hedgetest.Warm(t, rt, usual, "shop.test")
		assert.Zero(t, server.Attempts())
		begun := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://shop.test", nil)
		require.NoError(t, err)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.InDelta(t, 2*usual, time.Since(begun), 0.02*2*float64(usual))
		calls.Hedged(t, 2)
		assert.Equal(t, 2, calls.Calls()[0].Winner)

		_, _, err = send(t, rt, "POST", "/", "once")
		require.NoError(t, err)
		calls.SentOnce(t)
		assert.Equal(t, 4, server.Attempts())
	})
}

func TestWarmSetsLatenciesOfRoutesAndFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := hedgetest.NewServer(t, nil)
		var calls hedgetest.Recorder
		rt := hedge.New(server.Transport(), hedge.WithObserver(&calls), hedge.WithRoute("/slow", hedge.Policy{}), hedge.WithRoute("/other", hedge.Policy{}))
		hedgetest.Warm(t, rt, time.Second, "shop.test", "/slow")
		server.At(1, hedgetest.Fault{Delay: 10 * time.Second})
		server.At(3, hedgetest.Fault{Delay: 10 * time.Second})
		_, _, err := send(t, rt, "GET", "/slow", "")
		require.NoError(t, err)
		calls.Hedged(t, 1)
		_, _, err = send(t, rt, "GET", "/other", "") // nothing is known of it
		require.NoError(t, err)
		calls.SentOnce(t)

		var functions hedgetest.Recorder
		h := hedge.NewHedger(hedge.WithObserver(&functions))
		hedgetest.Warm(t, h, time.Second, "rows")
		var faults hedgetest.Faults
		faults.At(1, hedgetest.Fault{Delay: time.Hour})
		begun := time.Now()
		n, err := hedge.Do(t.Context(), h, "rows", func(ctx context.Context) (int, error) {
			f := faults.Arrive()
			select {
			case <-time.After(f.Delay):
				return faults.Attempts(), nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		assert.InDelta(t, time.Second, time.Since(begun), 0.02*float64(time.Second))
		functions.Hedged(t, 1)
	})
}

// refuses is an Importer that takes nothing.
type refuses struct{}

func (refuses) Import(io.Reader) error { return errors.New("no room") }

func TestWarmFailsTestOnError(t *testing.T) {
	for want, warm := range map[string]func(testing.TB){
		"usual 0s is not positive": func(t testing.TB) { hedgetest.Warm(t, hedge.New(nil), 0, "shop.test") },
		"hedgetest: Warm: no room": func(t testing.TB) { hedgetest.Warm(t, refuses{}, time.Second, "shop.test") },
	} {
		f := &failures{TB: t}
		assert.PanicsWithValue(t, f, func() { warm(f) })
		require.Len(t, f.all, 1)
		assert.Contains(t, f.all[0], want)
	}
}

// TestServerCutsResponseOfFlushingHandler has a handler that uses http.Flusher, as event streams do.
func TestServerCutsResponseOfFlushingHandler(t *testing.T) {
	for protocol, start := range protocols {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					for range 3 {
						_, _ = io.WriteString(w, "data: 1\n")
						w.(http.Flusher).Flush()
					}
				}))
				server.At(1, hedgetest.Fault{Reset: true, After: 8})
				resp, body, err := send(t, server.Transport(), "GET", "/", "")
				assert.Error(t, err)
				assert.Equal(t, 200, resp.StatusCode)
				assert.Equal(t, "data: 1\n", body)
			})
		})
	}
}

// stalled makes a call whose primary stalls, and returns how often it was sent and why it was not sent more often.
func stalled(t *testing.T, h *hedge.Hedger, calls *hedgetest.Recorder, key string) (attempts int, denied map[hedge.Reason]int64) {
	t.Helper()
	_, err := hedge.Do(t.Context(), h, key, func(ctx context.Context) (int, error) {
		if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 {
			return 0, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		return 0, ctx.Err()
	})
	require.NoError(t, err)
	for _, k := range h.Snapshot().Keys {
		if k.Host == key {
			denied = k.Denied
		}
	}
	all := calls.Calls()
	return all[len(all)-1].Attempts, denied
}

// TestWarmHostHasDocumentedBudgetAndPauses has calls whose primaries all stall.
func TestWarmHostHasDocumentedBudgetAndPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls hedgetest.Recorder
		h := hedge.NewHedger(hedge.WithObserver(&calls))
		hedgetest.Warm(t, h, 10*time.Millisecond, "rows")
		for n := range 11 { // ten, and the one that they have earned
			attempts, denied := stalled(t, h, &calls, "rows")
			assert.Equal(t, 2, attempts, "%d", n)
			assert.Empty(t, denied)
		}
		attempts, denied := stalled(t, h, &calls, "rows")
		assert.Equal(t, 1, attempts)
		assert.Equal(t, map[hedge.Reason]int64{hedge.DeniedBudget: 2}, denied)
	})
	synctest.Test(t, func(t *testing.T) {
		var calls hedgetest.Recorder
		h := hedge.NewHedger(hedge.WithObserver(&calls), hedge.WithBudget(hedge.NewBudget(100, 100)))
		hedgetest.Warm(t, h, 10*time.Millisecond, "rows")
		for n := range 21 {
			attempts, denied := stalled(t, h, &calls, "rows")
			assert.Equal(t, 2, attempts, "%d", n)
			assert.Empty(t, denied)
		}
		attempts, denied := stalled(t, h, &calls, "rows")
		assert.Equal(t, 1, attempts)
		assert.Equal(t, map[hedge.Reason]int64{hedge.DeniedSlow: 2}, denied)
	})
}

func TestWarmSetsLatenciesOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := hedgetest.NewServer(t, nil)
		var calls hedgetest.Recorder
		rt := hedge.New(server.Transport(), hedge.WithObserver(&calls), hedge.WithKeyFunc(func(_ context.Context, host, name string) string { return host + " " + name }))
		hedgetest.Warm(t, rt, time.Second, "shop.test GET /slow")
		server.At(1, hedgetest.Fault{Delay: time.Minute})
		_, _, err := send(t, rt, "GET", "/slow", "")
		require.NoError(t, err)
		calls.Hedged(t, 1)
	})
}

// TestWarmKeepsMinDelayForFastHosts has a host whose usual time is below [hedge.WithMinDelay]'s.
func TestWarmKeepsMinDelayForFastHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls hedgetest.Recorder
		h := hedge.NewHedger(hedge.WithObserver(&calls))
		hedgetest.Warm(t, h, 100*time.Microsecond, "rows")
		begun := time.Now()
		attempts, _ := stalled(t, h, &calls, "rows")
		assert.Equal(t, 2, attempts)
		assert.Equal(t, time.Millisecond, time.Since(begun))
	})
}
