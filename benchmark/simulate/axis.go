package main

import (
	"math"
	"strconv"
	"strings"
)

// An axis is the horizontal or vertical axis of a chart, with its range and ticks.
type axis struct {
	low, high   float64
	logarithmic bool
	ticks       []tick
}

type tick struct {
	value float64
	label string
}

// toFraction returns the position of value on the axis, from 0 at the low end to 1.
func (a axis) toFraction(value float64) float64 {
	if a.logarithmic {
		return math.Log(value/a.low) / math.Log(a.high/a.low)
	}
	return (value - a.low) / (a.high - a.low)
}

// newPercentileAxis returns a logarithmic axis from the median to high. Percentile p has the value 1/(1−p).
func newPercentileAxis(high float64) axis {
	ticks := []tick{{2, "p50"}, {10, "p90"}, {20, "p95"}}
	for nines := 2; math.Pow(10, float64(nines)) <= high*1.0001; nines++ {
		label := "p99"
		if nines > 2 {
			label += "." + strings.Repeat("9", nines-2)
		}
		ticks = append(ticks, tick{math.Pow(10, float64(nines)), label})
	}
	return axis{low: 2, high: high, logarithmic: true, ticks: ticks}
}

// newLogarithmicAxis returns a logarithmic axis with ticks at 1, 2, 5, 10 and so on: more on short axes, fewer on long ones.
func newLogarithmicAxis(low, high float64) axis {
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(high / low); {
	case decades > 3:
		steps = []float64{1}
	case decades < 0.4:
		steps = []float64{1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9}
	case decades < 1.2:
		steps = []float64{1, 1.5, 2, 3, 4, 5, 7}
	}
	var ticks []tick
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= low && v <= high {
				label := strconv.FormatFloat(v, 'g', 4, 64)
				if v >= 1e4 {
					label = formatThousands(int(math.Round(v)))
				}
				ticks = append(ticks, tick{v, label})
			}
		}
	}
	return axis{low: low, high: high, logarithmic: true, ticks: ticks}
}

// newLinearAxis returns a linear axis from 0 to high with at most nine ticks.
func newLinearAxis(high float64) axis {
	if high <= 0 {
		return axis{high: 1, ticks: []tick{{0, "0"}}}
	}
	step := math.Pow(10, math.Floor(math.Log10(high/9)))
	for _, s := range []float64{1, 2, 3, 5, 10} {
		if high/(s*step) < 9 {
			step *= s
			break
		}
	}
	var ticks []tick
	for i := 0.0; i*step <= high; i++ {
		ticks = append(ticks, tick{i * step, strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return axis{high: high, ticks: ticks}
}
