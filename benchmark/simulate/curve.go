package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

type point struct{ X, Y float64 }

// A strategyCurves value has the lines of one strategy in the charts: latency by percentile, and the 99th percentile
// and the hedges over time.
type strategyCurves struct {
	latency []point // 1/(1−p) to milliseconds
	p99     []point // seconds to milliseconds
	extra   []point // seconds to hedges per 100 requests
}

const (
	pointsPerDecade = 60   // of the latency curve
	maxSlices       = 60   // of time
	minSliceCalls   = 1500 // for the p99 of a slice
)

func newStrategyCurves(calls []latency.Call) strategyCurves {
	c := strategyCurves{latency: newLatencyCurve(latency.SortedLatencies(calls))}
	c.p99, c.extra = newTimeCurves(calls)
	return c
}

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

// newTimeCurves returns two curves over time: the 99th percentile of latency, and the hedges per 100 requests. Each
// point stands for a time slice, and all slices are equally long. Both curves are empty if there are too few calls for
// two slices.
func newTimeCurves(calls []latency.Call) (p99, extra []point) {
	n := min(maxSlices, len(calls)/minSliceCalls)
	if n < 2 {
		return nil, nil
	}
	var end time.Duration
	for _, call := range calls {
		end = max(end, call.Start)
	}
	width := end/time.Duration(n) + 1
	type slice struct {
		latencies       []time.Duration
		hedges, started int
	}
	slicesOfTime := make([]slice, n)
	for _, call := range calls {
		s := &slicesOfTime[call.Start/width]
		s.started++
		s.hedges += int(call.Hedges)
		if !call.Failed() {
			s.latencies = append(s.latencies, call.Latency)
		}
	}
	for i, s := range slicesOfTime {
		middle := (time.Duration(i)*width + width/2).Seconds()
		if s.started > 0 {
			extra = append(extra, point{middle, 100 * float64(s.hedges) / float64(s.started)})
		}
		if len(s.latencies) > 0 {
			slices.Sort(s.latencies)
			p99 = append(p99, point{middle, toMillis(latency.Quantile(s.latencies, 0.99))})
		}
	}
	return p99, extra
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
