package latency_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

func TestCallsWithoutAnAnswerHaveNoLatency(t *testing.T) {
	calls := []latency.Call{{Latency: 3}, {Latency: 9, Winner: -1}, {Latency: 1, Winner: 2}}
	assert.Equal(t, []time.Duration{1, 3}, latency.SortedLatencies(calls))
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	assert.Zero(t, latency.Quantile(nil, 0.5))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := make([]time.Duration, 1+rng.IntN(300))
		for i := range all {
			all[i] = time.Duration(rng.IntN(100))
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.001, 0.5, 0.9, 0.99, 0.999, 1} {
			got := latency.Quantile(all, q)
			// The definition: the smallest value with at least q of all at or below it.
			for _, v := range all {
				atOrBelow := 0
				for _, u := range all {
					if u <= v {
						atOrBelow++
					}
				}
				if float64(atOrBelow) >= q*float64(len(all))-1e-9 {
					require.Equal(t, v, got, "%v of %v", q, all)
					break
				}
			}
		}
	}
}
