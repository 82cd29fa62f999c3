package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A point of a curve.
type point struct{ X, Y float64 }

// curves are the lines that plots show of a trial.
type curves struct {
	latency []point // 1/(1−p) to milliseconds
	p99     []point // seconds to milliseconds
	extra   []point // seconds to hedges per 100 requests
}

const (
	pointsPerDecade = 60   // of the latency curve
	maxSlices       = 60   // of time
	minSliceCalls   = 1500 // for the p99 of a slice
)

func newCurves(calls []latency.Call) curves {
	c := curves{latency: newLatencyCurve(latency.SortedAnswered(calls))}
	c.p99, c.extra = newTimeCurves(calls)
	return c
}

// newLatencyCurve returns the quantiles of sorted latencies from the median on. It ends where ten calls are slower: beyond that,
// it would show chance.
func newLatencyCurve(sorted []time.Duration) (curve []point) {
	for i := 0; ; i++ {
		x := 2 * math.Pow(10, float64(i)/pointsPerDecade)
		if x > float64(len(sorted))/10 {
			return curve
		}
		curve = append(curve, point{x, millis(latency.Quantile(sorted, 1-1/x))})
	}
}

// newTimeCurves returns the 99th percentiles and the extra requests of equal slices of time. They are empty if there are too few
// calls for two slices.
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
			p99 = append(p99, point{middle, millis(latency.Quantile(s.latencies, 0.99))})
		}
	}
	return p99, extra
}

// medianCurve returns the median of each point of several curves with the same horizontal positions, up to the end of the shortest.
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
