package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A run whose calls come in ten batches of their own is as good as ten calls, not as a hundred thousand.
func TestBatchErrorMarginsIncludeDependenceOfCalls(t *testing.T) {
	draw := func(dependent float64) (run, sorted []float64) {
		rng := rand.New(rand.NewPCG(3, 4))
		for range batchCount {
			shift := dependent * rng.NormFloat64()
			for range 10_000 {
				run = append(run, 50+shift+10*rng.NormFloat64())
			}
		}
		sorted = slices.Clone(run)
		slices.Sort(sorted)
		return run, sorted
	}
	run, sorted := draw(0)
	s := batchErrorMargins([][]float64{run}, sorted)
	standard := 10 / math.Sqrt(float64(len(run)))
	near := func(want, got float64) { t.Helper(); assert.InEpsilon(t, want, got, 0.6) } // a batch more or less decides
	near(studentFactor*standard, s.mean)
	near(studentFactor*standard*math.Sqrt(0.99*0.01)/0.02665, s.p99) // √(q(1-q)) over the density there

	run, sorted = draw(3)
	s = batchErrorMargins([][]float64{run}, sorted)
	near(studentFactor*3/math.Sqrt(batchCount), s.mean)
	assert.Greater(t, s.p99, 1.0)
}

// A change by intent is no uncertainty.
func TestBatchErrorMarginsLeaveOutDifferencesOfPhases(t *testing.T) {
	var calm, slow []float64
	for i := range 1000 {
		calm, slow = append(calm, float64(5+i%2)), append(slow, float64(500+i%2))
	}
	sorted := slices.Concat(calm, slow)
	slices.Sort(sorted)
	assert.Less(t, batchErrorMargins([][]float64{calm, slow}, sorted).mean, 0.1)
	assert.Greater(t, batchErrorMargins([][]float64{slices.Concat(calm, slow)}, sorted).mean, 100.0)
	assert.Equal(t, []time.Duration{60 * sec, 90 * sec}, findScenario("outage").partBoundaries())
}

func TestBatchErrorMarginsOfFewCallsAreZero(t *testing.T) {
	assert.Zero(t, batchErrorMargins([][]float64{{1, 2, 3}}, []float64{1, 2, 3}))
	assert.Zero(t, batchErrorMargins(nil, nil))
}

// An interval of 95 % covers the true quantile of nineteen runs in twenty.
func TestQuantileIntervalCoversTheQuantile(t *testing.T) {
	skipIfShort(t)
	const runs, calls = 400, 5000
	for _, q := range []float64{0.99, 0.999} {
		truth := -math.Log(1 - q) // of an exponential distribution
		rng := rand.New(rand.NewPCG(5, 6))
		covered := 0
		for range runs {
			sample := make([]float64, calls)
			for i := range sample {
				sample[i] = rng.ExpFloat64()
			}
			slices.Sort(sample)
			if low, high := quantileInterval(sample, q); low <= truth && truth <= high {
				covered++
			}
		}
		assert.InDelta(t, 0.95, float64(covered)/runs, 0.035, "q = %v", q)
	}
}
