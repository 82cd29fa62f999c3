package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A point of a curve.
type point struct{ X, Y float64 }

// curves are what the plots show of a trial.
type curves struct {
	latency []point // 1/(1−p) to milliseconds
	p99     []point // seconds to milliseconds
	extra   []point // seconds to hedges per 100 requests
}

const (
	perDecade = 60   // points of the latency curve
	slices99  = 60   // slices of time, at most
	perSlice  = 1500 // calls that a slice needs, for its p99
)

func newCurves(calls []latency.Call) curves {
	var c curves
	var end time.Duration
	for _, call := range calls {
		end = max(end, call.Start)
	}
	took := latency.Answered(calls)
	// The curve begins at the median, and ends where ten calls are left: beyond that, it would show chance.
	for i := 0; ; i++ {
		x := 2 * math.Pow(10, float64(i)/perDecade)
		if x > float64(len(took))/10 {
			break
		}
		c.latency = append(c.latency, point{x, millis(latency.Quantile(took, 1-1/x))})
	}
	n := min(slices99, len(calls)/perSlice)
	if n < 2 {
		return c
	}
	width := end/time.Duration(n) + 1
	type slice struct {
		took            []time.Duration
		hedges, started int
	}
	cut := make([]slice, n)
	for _, call := range calls {
		s := &cut[call.Start/width]
		s.started++
		s.hedges += int(call.Hedges)
		if !call.Failed() {
			s.took = append(s.took, call.Latency)
		}
	}
	for i, s := range cut {
		at := (time.Duration(i)*width + width/2).Seconds()
		if s.started > 0 {
			c.extra = append(c.extra, point{at, 100 * float64(s.hedges) / float64(s.started)})
		}
		if len(s.took) > 0 {
			slices.Sort(s.took)
			c.p99 = append(c.p99, point{at, millis(latency.Quantile(s.took, 0.99))})
		}
	}
	return c
}
