package steering_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/steering"
)

// TestCallsInFlightKeepShadowMode replaces a file with shadow mode during a call.
func TestCallsInFlightKeepShadowMode(t *testing.T) {
	unsetVariables(t)
	for _, next := range []steering.File{{Mode: "off"}, {Disabled: true}, {Mode: "on"}, {Mode: "on", Disabled: true}, {Mode: "audit"}, {}} {
		synctest.Test(t, func(t *testing.T) {
			h := hedge.NewHedger(hedge.WithInitialDelay(20*ms), hedge.WithMaxHedges(1))
			require.NoError(t, steering.File{Mode: "shadow"}.Apply(h))
			call := func() (int, error) {
				return hedge.Do(t.Context(), h, "shop", func(ctx context.Context) (int, error) { return 0, doubles.Sleep(ctx, 100*ms) })
			}
			var calls sync.WaitGroup
			calls.Go(func() {
				_, err := call()
				assert.NoError(t, err)
			})
			time.Sleep(10 * ms)
			require.NoError(t, next.Apply(h))
			calls.Wait()
			assert.Zero(t, h.Snapshot().Stats.HedgesSent, "%+v", next)
			assert.EqualValues(t, 1, h.Snapshot().Keys[0].Denied[hedge.DeniedShadow], "%+v", next)

			require.NoError(t, steering.File{Mode: "on"}.Apply(h))
			_, err := call()
			require.NoError(t, err)
			assert.EqualValues(t, 1, h.Snapshot().Stats.HedgesSent, "a call that starts afterwards")
		})
	}
}

// TestFileThatReplacesExclusionsNeverAllowsHedges alternates between files that allow no hedges. An allowed call would make a
// latency key.
func TestFileThatReplacesExclusionsNeverAllowsHedges(t *testing.T) {
	unsetVariables(t)
	rt := new(doubles.RoundTripper)
	rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
		return rt.Response(req, http.StatusOK, ""), nil
	}
	tr := hedge.New(rt)
	excluded := steering.File{Routes: map[string]bool{"/": false}}
	require.NoError(t, excluded.Apply(tr))
	stop, req := make(chan struct{}), doubles.NewRequest(t, t.Context(), "GET", "http://shop.test/", nil)
	var calls sync.WaitGroup
	calls.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			resp, err := tr.RoundTrip(req)
			if !assert.NoError(t, err) {
				return
			}
			doubles.ReadBody(t, resp)
			rt.Forget()
		}
	})
	for range 10_000 {
		require.NoError(t, steering.File{Disabled: true, Mode: "on"}.Apply(tr))
		require.NoError(t, excluded.Apply(tr))
	}
	close(stop)
	calls.Wait()
	assert.Empty(t, tr.Snapshot().Keys)
}
