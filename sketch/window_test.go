package sketch_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/sketch"
)

var epoch = time.Unix(1_700_000_000, 0)

func TestEmptyWindowHasNoQuantiles(t *testing.T) {
	var w sketch.Window
	_, ok := w.Quantile(0.5)
	assert.False(t, ok)
	assert.Zero(t, w.Len())
	assert.Zero(t, w.Rate(epoch))
	for range w.Tail() {
		t.Fatal("an empty window has no buckets")
	}
}

func TestQuantilesAreWithinOnePercent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	shapes := map[string]func() time.Duration{
		"lognormal":  func() time.Duration { return time.Duration(5e6 * math.Exp(rng.NormFloat64())) },
		"pareto":     func() time.Duration { return time.Duration(1e3 * math.Pow(rng.Float64(), -1/1.1)) },
		"constant":   func() time.Duration { return 20 * time.Millisecond },
		"nanosecond": func() time.Duration { return time.Duration(rng.IntN(40)) },
		"hours":      func() time.Duration { return time.Duration(rng.IntN(1000)) * time.Hour },
	}
	for name, next := range shapes {
		t.Run(name, func(t *testing.T) {
			var w sketch.Window
			var all []time.Duration
			for range 10_000 {
				d := next()
				all = append(all, max(d, 1))
				w.Add(epoch, d)
			}
			slices.Sort(all)
			for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
				got, ok := w.Quantile(q)
				require.True(t, ok)
				want := all[int(q*float64(len(all)-1))]
				// One nanosecond is what rounding to a Duration may add.
				assert.InDelta(t, float64(want), float64(got), sketch.Accuracy*float64(want)+1, "q=%v", q)
			}
		})
	}
}

func TestQuantileClampsArgument(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, time.Millisecond)
	w.Add(epoch, time.Second)
	low, _ := w.Quantile(-3)
	high, _ := w.Quantile(7)
	assert.InEpsilon(t, time.Millisecond, low, 0.01)
	assert.InEpsilon(t, time.Second, high, 0.01)
}

func TestAddClampsSamples(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, -time.Hour)
	w.Add(epoch, math.MaxInt64)
	assert.Equal(t, 2, w.Len())
	low, _ := w.Quantile(0)
	assert.LessOrEqual(t, low, 2*time.Nanosecond)
	high, _ := w.Quantile(1)
	assert.InEpsilon(t, 10_000*time.Hour, high, 0.01)
}

func TestWindowReplacesHalfWhenOldAndFull(t *testing.T) {
	var w sketch.Window
	for range sketch.MinHalfSize - 1 {
		w.Add(epoch, time.Second)
	}
	// Old, but one sample short: everything is still there.
	w.Add(epoch.Add(time.Hour), time.Second)
	assert.Equal(t, sketch.MinHalfSize, w.Len())

	// Full and old: the first half becomes the previous one, and still counts.
	at := epoch.Add(2 * time.Hour)
	w.Add(at, time.Millisecond)
	assert.Equal(t, sketch.MinHalfSize+1, w.Len())

	// When the second half becomes the previous one, the first is dropped.
	for range sketch.MinHalfSize - 1 {
		w.Add(at, time.Millisecond)
	}
	w.Add(at.Add(sketch.MinHalfAge), time.Millisecond)
	assert.Equal(t, sketch.MinHalfSize+1, w.Len())
	slowest, _ := w.Quantile(1)
	assert.InEpsilon(t, time.Millisecond, slowest, 0.01)
}

func TestWindowKeepsYoungHalfHoweverFull(t *testing.T) {
	var w sketch.Window
	for i := range 10_000 {
		w.Add(epoch.Add(time.Duration(i)*(sketch.MinHalfAge-1)/10_000), time.Second)
	}
	assert.Equal(t, 10_000, w.Len())
}

func TestPreviousHalfCountsAtMost500Samples(t *testing.T) {
	var w sketch.Window
	for range 30_000 {
		w.Add(epoch, time.Second)
	}
	at := epoch.Add(sketch.MinHalfAge)
	for range 2 * sketch.MaxPastWeight {
		w.Add(at, time.Millisecond)
	}
	// 1000 fast samples beside 30,000 slow ones that weigh 500: a third is slow.
	fast, _ := w.Quantile(0.66)
	slow, _ := w.Quantile(0.67)
	assert.InEpsilon(t, time.Millisecond, fast, 0.01)
	assert.InEpsilon(t, time.Second, slow, 0.01)
}

func TestIdleWindowKeepsSamples(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, 40*time.Millisecond)
	assert.InDelta(t, 1.0/3600, w.Rate(epoch.Add(time.Hour)), 1e-9)
	q, ok := w.Quantile(0.9)
	require.True(t, ok)
	assert.InEpsilon(t, 40*time.Millisecond, q, 0.01)
}

func TestRateCountsBothHalves(t *testing.T) {
	var w sketch.Window
	for i := range 3000 { // 100 per second for 30 s
		w.Add(epoch.Add(time.Duration(i)*10*time.Millisecond), time.Millisecond)
	}
	assert.InEpsilon(t, 100, w.Rate(epoch.Add(30*time.Second)), 0.01)
}

func TestTailReturnsShareAboveEachBound(t *testing.T) {
	var w sketch.Window
	for range 90 {
		w.Add(epoch, 5*time.Millisecond)
	}
	for range 10 {
		w.Add(epoch, 50*time.Millisecond)
	}
	type row struct {
		edge  time.Duration
		above float64
	}
	var rows []row
	for edge, above := range w.Tail() {
		rows = append(rows, row{edge, above})
	}
	require.Len(t, rows, 2, "empty buckets are passed over")
	assert.InEpsilon(t, 50*time.Millisecond, rows[0].edge, 0.021)
	assert.GreaterOrEqual(t, rows[0].edge, 50*time.Millisecond, "an edge is above its bucket")
	assert.Zero(t, rows[0].above)
	assert.GreaterOrEqual(t, rows[1].edge, 5*time.Millisecond)
	assert.InDelta(t, 0.10, rows[1].above, 1e-9)
}

func TestTailStopsEarly(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, time.Millisecond)
	w.Add(epoch, time.Second)
	n := 0
	for range w.Tail() {
		n++
		break
	}
	assert.Equal(t, 1, n)
}

func TestAddDoesNotAllocateWithinKnownRange(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, time.Microsecond)
	w.Add(epoch, time.Minute)
	d := time.Microsecond
	assert.Zero(t, testing.AllocsPerRun(1000, func() { w.Add(epoch, d); d += time.Millisecond }))
}

// FuzzWindow compares a window with a sorted slice.
func FuzzWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 255, 0, 0}, 0.5)
	f.Add([]byte("latencies"), 0.99)
	f.Fuzz(func(t *testing.T, data []byte, q float64) {
		if math.IsNaN(q) || q < 0 || q > 1 {
			q = 0.5
		}
		data = data[:min(len(data), sketch.MaxPastWeight)] // with more, the weight of the previous half would be limited
		var w sketch.Window
		var all []time.Duration
		for i, b := range data {
			d := time.Duration(math.Pow(1.12, float64(b))) // 1 ns to an hour
			all = append(all, d)
			w.Add(epoch.Add(time.Duration(i)*sketch.MinHalfAge/sketch.MinHalfSize), d)
		}
		got, ok := w.Quantile(q)
		require.Equal(t, len(data) > 0, ok)
		// The window may have dropped the oldest samples, in whole halves.
		require.LessOrEqual(t, w.Len(), len(all))
		require.GreaterOrEqual(t, w.Len(), min(len(all), sketch.MinHalfSize))
		if !ok {
			return
		}
		kept := slices.Clone(all[len(all)-w.Len():])
		slices.Sort(kept)
		want := kept[int(q*float64(len(kept)-1))]
		require.InDelta(t, float64(want), float64(got), sketch.Accuracy*float64(want)+1)

		edge, share := time.Duration(math.MaxInt64), -1.0
		for e, above := range w.Tail() {
			require.Less(t, e, edge, "edges fall")
			require.Greater(t, above, share, "shares rise")
			n := 0
			for _, d := range kept {
				if d > e {
					n++
				}
			}
			require.InDelta(t, float64(n)/float64(len(kept)), above, 1e-9)
			edge, share = e, above
		}
	})
}
