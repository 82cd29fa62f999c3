package main

import "math"

// A chart is a kind of plot that each scenario gets, for example latency by percentile. It has titles, scales, and the
// curve to show of each strategy.
type chart struct {
	name           string // the end of its file's name
	title          string
	xTitle, yTitle string
	curve          func(curves) []point
	percentiles    bool // the horizontal axis has percentiles; else it is linear
	logarithmic    bool // the vertical axis
}

var charts = []chart{
	{
		name: "latency", title: "Latency by percentile", xTitle: "percentile of requests", yTitle: "milliseconds", percentiles: true, logarithmic: true,
		curve: func(c curves) []point { return c.latency },
	}, {
		name: "p99", title: "p99 over time", xTitle: "seconds", yTitle: "milliseconds", logarithmic: true,
		curve: func(c curves) []point { return c.p99 },
	}, {
		name: "extra", title: "Extra load over time", xTitle: "seconds", yTitle: "hedges per 100 requests",
		curve: func(c curves) []point { return c.extra },
	},
}

// newCanvas returns a drawing of the chart for one scenario: a line with a label for each strategy, in the strategy's
// style. This library's line is on top. It returns nil if no line has two points.
func (c chart) newCanvas(f scenarioResults, styles lineStyles) *canvas {
	lines := make(map[string][]point)
	low, high, right := math.Inf(1), math.Inf(-1), 0.0
	for _, r := range f.results {
		var line []point
		for _, p := range c.curve(r.curves) {
			if !c.logarithmic || p.Y > 0 {
				line = append(line, p)
			}
		}
		if len(line) < 2 {
			continue
		}
		lines[r.strategy] = line
		for _, p := range line {
			low, high, right = min(low, p.Y), max(high, p.Y), max(right, p.X)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	d := &canvas{title: c.title + ": " + f.scenario.name, x: newLinearAxis(right), y: newLinearAxis(max(high*1.05, 1))}
	if c.percentiles {
		d.x = newPercentileAxis(right)
	}
	if c.logarithmic {
		d.y = newLogarithmicAxis(low/1.1, high*1.1)
	}
	d.addText("quiet", 28, plotTop-20, c.yTitle)
	d.drawAxes(c.xTitle)
	drawLine := func(name string) {
		if line, ok := lines[name]; ok {
			d.drawLine(styles.find(name), line, name)
		}
	}
	for _, name := range f.strategies() {
		if name != ours {
			drawLine(name)
		}
	}
	drawLine(ours)
	d.drawLabels()
	return d
}
