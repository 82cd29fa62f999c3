package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

type point struct{ X, Y float64 }

const pointsPerDecade = 60 // of the latency curve

// newLatencyCurve returns the quantiles of sorted latencies as points, from the median on. The point of quantile p has
// the horizontal position 1/(1−p) and the latency in milliseconds. The curve ends at the quantile that only ten calls
// exceed, because chance determines higher quantiles.
func newLatencyCurve(sorted []time.Duration) (curve []point) {
	for i := 0; ; i++ {
		x := 2 * math.Pow(10, float64(i)/pointsPerDecade)
		if x > float64(len(sorted))/10 {
			return curve
		}
		curve = append(curve, point{x, toMillis(latency.Quantile(sorted, 1-1/x))})
	}
}

// medianCurve returns the curve whose points are the medians of the points of several curves. All curves must have the
// same horizontal positions. The result is as long as the shortest curve.
func medianCurve(all [][]point) []point {
	shortest := slices.MinFunc(all, func(a, b []point) int { return len(a) - len(b) })
	joined := slices.Clone(shortest)
	for i := range joined {
		var values []float64
		for _, curve := range all {
			values = append(values, curve[i].Y)
		}
		slices.Sort(values)
		joined[i].Y = values[(len(values)-1)/2]
	}
	return joined
}
