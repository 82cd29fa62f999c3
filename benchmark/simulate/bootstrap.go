package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// spreads are how far a row's figures may be off, in milliseconds; 0 if it is not known.
type spreads struct{ p50, p95, p99, p999, mean, stddev float64 }

const resamples = 1000

// bootstrap returns halves of the 95 % percentile intervals (Efron, Bootstrap
// Methods, 1979) of a sorted sample's figures. It takes calls for independent,
// as those of a simulated network are.
func bootstrap(sample []float64) spreads {
	n := len(sample)
	if n == 0 {
		return spreads{}
	}
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	quantiles := [...]float64{0.5, 0.95, 0.99, 0.999}
	var drawn [len(quantiles) + 2][]float64
	times := make([]int, n) // that each value is drawn
	for range resamples {
		clear(times)
		for range n {
			times[rng.IntN(n)]++
		}
		var sum, squares float64
		below, q := 0, 0
		for i, k := range times {
			x := sample[i]
			sum += float64(k) * x
			squares += float64(k) * x * x
			for below += k; q < len(quantiles) && float64(below) >= quantiles[q]*float64(n); q++ {
				drawn[q] = append(drawn[q], x)
			}
		}
		mean := sum / float64(n)
		drawn[4] = append(drawn[4], mean)
		drawn[5] = append(drawn[5], math.Sqrt(max(0, squares/float64(n)-mean*mean)))
	}
	half := func(i int) float64 {
		slices.Sort(drawn[i])
		return (drawn[i][resamples*975/1000-1] - drawn[i][resamples*25/1000]) / 2
	}
	return spreads{half(0), half(1), half(2), half(3), half(4), half(5)}
}
