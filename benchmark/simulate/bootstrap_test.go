package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBootstrapFindsWhatTheoryKnows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var normal []float64
	for range 10_000 {
		normal = append(normal, 50+10*rng.NormFloat64())
	}
	slices.Sort(normal)
	s := bootstrap(normal)
	root := math.Sqrt(float64(len(normal)))
	near := func(want, got float64) { t.Helper(); assert.InEpsilon(t, want, got, 0.35) }
	near(1.96*10/root, s.mean)
	near(1.96*10/root*math.Sqrt(math.Pi/2), s.p50) // the median's standard error
	near(1.96*10/root/math.Sqrt2, s.stddev)
	near(1.96*10/root*math.Sqrt(0.95*0.05)/0.1031, s.p95) // √(q(1-q)) over the density there
	assert.Less(t, s.p95, s.p99)
	assert.Less(t, s.p99, s.p999)
}

func TestBootstrapOfWhatNeverVariesIsNothing(t *testing.T) {
	assert.Zero(t, bootstrap([]float64{7, 7, 7}))
	assert.Zero(t, bootstrap(nil))
}
