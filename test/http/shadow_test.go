package http_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// latency is the benchmark's seed distribution: lognormal with mean 5 ms and
// deviation 2 ms, one in twenty ten times slower.
func latency(rng *rand.Rand) time.Duration {
	const cv2 = (2.0 / 5) * (2.0 / 5)
	sigma := math.Sqrt(math.Log(1 + cv2))
	ms := math.Exp(math.Log(5) - sigma*sigma/2 + sigma*rng.NormFloat64())
	if rng.IntN(20) == 0 {
		ms *= 10
	}
	return time.Duration(ms * 1e6)
}

// scenarios say how long an attempt takes that starts at some share of the run.
var scenarios = map[string]func(rng *rand.Rand, at float64) time.Duration{
	"seed": func(rng *rand.Rand, _ float64) time.Duration { return latency(rng) },
	"drift": func(rng *rand.Rand, at float64) time.Duration {
		if at >= 1./3 && at < 2./3 {
			return 3 * latency(rng)
		}
		return latency(rng)
	},
	"creep": func(rng *rand.Rand, at float64) time.Duration {
		return time.Duration((1 + 2*at) * float64(latency(rng)))
	},
}

// runResult is the result of a run of a scenario.
type runResult struct {
	hedges    int64
	estimated time.Duration // saved time, by the snapshot
	saved     time.Duration // measured
}

// run makes calls at random times in fake time, 500 per second.
func run(t *testing.T, calls int, draw func(*rand.Rand, float64) time.Duration, opts ...hedge.FuncOption) (r runResult) {
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewHedger(opts...)
		rng := rand.New(rand.NewPCG(7, 7))
		var wg sync.WaitGroup
		var mu sync.Mutex
		for i := range calls {
			at := float64(i) / float64(calls)
			takes := make([]time.Duration, 4)
			for n := range takes {
				takes[n] = draw(rng, at)
			}
			wg.Go(func() {
				start := time.Now()
				_, err := hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) {
					a, _ := hedge.AttemptFromContext(ctx)
					return 0, doubles.Sleep(ctx, takes[a.Number])
				})
				mu.Lock()
				defer mu.Unlock()
				assert.NoError(t, err)
				r.saved += takes[0] - time.Since(start)
			})
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(2*ms)))
		}
		wg.Wait()
		key := h.Snapshot().Keys[0]
		r.hedges, r.estimated = key.Hedges+key.Denied[hedge.DeniedShadow], key.Saved
	})
	return r
}

func TestShadowPredictsEffectOfHedging(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	for name, draw := range scenarios {
		t.Run(name, func(t *testing.T) {
			shadow := run(t, 30_000, draw, hedge.WithShadow())
			real := run(t, 30_000, draw)
			t.Logf("hedges: predicted %d, sent %d; saved: predicted %v, measured %v, estimated while hedging %v",
				shadow.hedges, real.hedges, shadow.estimated, real.saved, real.estimated)
			assert.Zero(t, shadow.saved, "shadow mode sends nothing")
			assert.InEpsilon(t, real.hedges, shadow.hedges, 0.2)
			assert.InEpsilon(t, real.saved, shadow.estimated, 0.2)
			assert.LessOrEqual(t, real.estimated, real.saved*13/10)
			assert.GreaterOrEqual(t, real.estimated, real.saved/2, "although every primary that lost was cancelled")
		})
	}
}

func TestShadowSendsNoHedge(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rec := new(recorder)
		rt.Answer = after(rt, time.Second)
		tr := warm(t, rt, hedge.WithShadow(), hedge.WithObserver(rec))
		rec.Take()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Len(t, rt.Sent(), 1)
		assert.Equal(t, []string{"start 0", "denied: shadow", "won 0 after 1000", "done by 0 of 1 after 1000"}, rec.Take())
		assert.InDelta(t, 980*ms, rec.LastResult().Saved, float64(5*ms), "a hedge at 10 ms would have answered at 20")
		key := tr.Snapshot().Keys[0]
		assert.EqualValues(t, 1, key.Denied[hedge.DeniedShadow])
		assert.EqualValues(t, 1, key.ShadowWins)
		assert.Zero(t, key.Hedges+key.Wins)
		assert.InEpsilon(t, time.Second, hedge.LatencyEstimate(tr, "catalog.test", 1), 0.02, "what callers really waited")
		assert.Zero(t, tr.Snapshot().Stats.HedgesSent)
	})
}

func TestEnvironmentOverridesOptions(t *testing.T) {
	for _, test := range []struct {
		name, value     string
		enabled, shadow bool
	}{
		{"HEDGE_DISABLED", "true", false, false},
		{"HEDGE_DISABLED", "yes", false, false},
		{"HEDGE_DISABLED", " On\n", false, false},
		{"HEDGE_DISABLED", "0", true, false},
		{"HEDGE_DISABLED", "No", true, false},
		{"HEDGE_DISABLED", " false ", true, false},
		{"HEDGE_DISABLED", "flase", false, false},
		{"HEDGE_DISABLED", "", true, false},
		{"HEDGE_MODE", "shadow", true, true},
		{"HEDGE_MODE", "observe", true, true},
		{"HEDGE_MODE", "Observe", true, true},
		{"HEDGE_MODE", " SHADOW ", true, true},
		{"HEDGE_MODE", "off", false, false},
		{"HEDGE_MODE", "Disabled", false, false},
		{"HEDGE_MODE", "normal", true, false},
		{"HEDGE_MODE", "ON", true, false},
		{"HEDGE_MODE", "hedge", true, false},
		{"HEDGE_MODE", "", true, false},
		{"HEDGE_MODE", "shadwo", true, true},
		{"HEDGE_MODE", "shadow|off", true, true},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			t.Setenv(test.name, test.value)
			tr := hedge.New(http.DefaultTransport, hedge.WithLogger(slog.New(slog.DiscardHandler)))
			t.Setenv(test.name, "") // it was read once
			assert.Equal(t, test.enabled, tr.Snapshot().Enabled)
			assert.Equal(t, test.shadow, tr.Snapshot().Shadow)
			tr.SetEnabled(true)
			assert.True(t, tr.Snapshot().Enabled)
		})
	}
}

func TestInvalidEnvironmentVariableIsLoggedOnce(t *testing.T) {
	const warning = "hedge: a variable of the environment cannot be understood, so no hedge is sent"
	value := fmt.Sprint("shadwo ", time.Now()) // another one in each run of the test
	t.Setenv("HEDGE_MODE", value)
	j := fixture.NewJournal()
	hedge.NewHedger(hedge.WithLogger(slog.New(j)), hedge.WithName("catalog"))
	want := fmt.Sprintf("WARN %q client=catalog variable=HEDGE_MODE value=%q", strings.TrimPrefix(warning, "hedge: "), value)
	assert.Equal(t, []string{want}, j.Take())

	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	slog.SetDefault(slog.New(j))
	for range 3 {
		hedge.NewHedger()
	}
	assert.Len(t, j.Take(), 1, "a program may make many")

	t.Setenv("HEDGE_DISABLED", "flase")
	hedge.NewHedger(hedge.WithLogger(slog.New(j)))
	assert.Len(t, j.Take(), 3, "a warning for each variable, and that hedging is disabled")
}
