package func_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestDoCountsNoWinIfFirstCallDelaysResult has first calls that stall for a second. Some return when their context ends. The others return
// a success or an error after the second, or after a further second.
func TestDoCountsNoWinIfFirstCallDelaysResult(t *testing.T) {
	for name, test := range map[string]struct {
		stall func(ctx context.Context) error
		held  int64
	}{
		"ends with its context": {func(ctx context.Context) error { return doubles.Sleep(ctx, time.Second) }, 0},
		"ignores its context":   {func(context.Context) error { time.Sleep(time.Second); return nil }, 3},
		"looks at its context in the end": {func(ctx context.Context) error {
			time.Sleep(time.Second)
			return ctx.Err()
		}, 3},
		"ends a little later": {func(ctx context.Context) error {
			_ = doubles.Sleep(ctx, time.Second)
			time.Sleep(time.Millisecond)
			return ctx.Err()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var seen heldBackCounter
				h := hedge.NewHedger(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), hedge.WithObserver(&seen))
				call := func(stalls bool) {
					_, err := hedge.Do(t.Context(), h, "db", func(ctx context.Context) (int, error) {
						if a, _ := hedge.AttemptFromContext(ctx); stalls && !a.Hedge() {
							return 1, test.stall(ctx)
						}
						return 2, doubles.Sleep(ctx, 10*time.Millisecond)
					})
					require.NoError(t, err)
				}
				for i := range 600 {
					call(i%200 == 199)
				}
				stats := h.Snapshot().Stats
				assert.Equal(t, test.held, stats.HeldBack)
				assert.Equal(t, test.held, seen.calls, "observed")
				assert.Equal(t, 3-test.held, stats.HedgeWins)
				assert.Equal(t, 3-test.held, h.Snapshot().Keys[0].Wins)
				assert.Equal(t, int(min(test.held, 1)), strings.Count(log.String(), "does not return"))
				assert.Equal(t, min(test.held, 1) == 1, strings.Contains(log.String(), "key=db"))
			})
		})
	}
}

// heldBackCounter counts results with HeldBack set.
type heldBackCounter struct {
	hedge.NopObserver
	calls int64
}

func (c *heldBackCounter) RequestDone(_ context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if r.HeldBack {
		c.calls++
	}
}

// TestShadowModeIsLoggedAndCountsWins makes calls of which one in fifty fails after a second.
func TestShadowModeIsLoggedAndCountsWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := hedge.NewHedger(hedge.WithShadow(), hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for i := range 1000 {
			_, _ = hedge.Do(t.Context(), h, "db", func(ctx context.Context) (int, error) {
				if i%50 == 49 {
					_ = doubles.Sleep(ctx, time.Second)
					return 0, context.DeadlineExceeded
				}
				return 0, doubles.Sleep(ctx, 10*time.Millisecond)
			})
		}
		s := h.Snapshot()
		assert.InDelta(t, 19, s.Stats.ShadowWins, 3)
		assert.Equal(t, s.Stats.ShadowWins, s.Keys[0].ShadowWins)
		assert.InDelta(t, 18, s.Keys[0].Saved.Seconds(), 3)
		assert.Equal(t, 1, strings.Count(log.String(), "shadow mode"))
	})
}
