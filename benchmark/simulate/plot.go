package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A chart is a kind of plot that is drawn for each scenario, for example latency by percentile. It has titles, scales,
// and a function that returns the curve of a strategy.
type chart struct {
	name           string // the end of the file name
	title          string
	xTitle, yTitle string
	curve          func(strategyCurves) []point
	percentiles    bool // the horizontal axis has percentiles; else it is linear
	logarithmic    bool // the vertical axis
}

var charts = []chart{
	{
		name: "latency", title: "Latency by percentile", xTitle: "percentile of requests", yTitle: "milliseconds", percentiles: true, logarithmic: true,
		curve: func(c strategyCurves) []point { return c.latency },
	}, {
		name: "p99", title: "p99 over time", xTitle: "seconds", yTitle: "milliseconds", logarithmic: true,
		curve: func(c strategyCurves) []point { return c.p99 },
	}, {
		name: "extra", title: "Extra load over time", xTitle: "seconds", yTitle: "hedges per 100 requests",
		curve: func(c strategyCurves) []point { return c.extra },
	},
}

// drawScenario draws the chart for the results f of one scenario, with a labelled line for each strategy in the style
// of the strategy. The line of this library is on top. It returns nil if no line has two points.
func (c chart) drawScenario(f scenarioResults, styles lineStyles) *canvas {
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
			d.drawLine(styles.findStyle(name), line, name)
		}
	}
	for _, name := range f.strategies() {
		if name != libraryStrategy {
			drawLine(name)
		}
	}
	drawLine(libraryStrategy)
	d.drawLabels()
	return d
}

// headlineStrategies returns the strategies in README's table and picture: this library, and then all other strategies
// with a title.
func headlineStrategies() []strategy {
	return filterStrategies(func(s strategy) bool { return s.title != "" })
}

const (
	pictureTitle = "Latency by percentile, with and without hedging"
	pictureMaxX  = 2500 // 1/(1−p) at the right edge: p99.96
)

// drawPicture returns README's picture as SVG: the latency curves of the first scenario in the results f. The
// description of the picture has the figures of README's table, which come from the same run.
func drawPicture(f engineResults) []byte {
	s := f.scenarios[0]
	var strategies, described []string
	highest := 0.0
	for _, h := range headlineStrategies() {
		strategies = append(strategies, h.name)
		res := s.findResult(h.name)
		whole := res.rows[0]
		described = append(described, fmt.Sprintf("%s: p99 %s ms, p99.9 %s ms, %s", h.title, formatMillis(whole.P99), formatMillis(whole.P999), describeCost(whole)))
		for _, p := range res.curves.latency {
			if p.X <= pictureMaxX {
				highest = max(highest, p.Y)
			}
		}
	}
	d := &canvas{
		title: pictureTitle, description: strings.Join(described, "; ") + ".",
		x: newPercentileAxis(pictureMaxX), y: newLinearAxis(math.Ceil(highest/20) * 20),
	}
	d.y.ticks[len(d.y.ticks)-1].label += " ms"
	d.addText("quiet", 28, 63, "The published benchmark of bhope/hedge: 20 callers; 5 ms ± 2 ms, and ten times as long for one attempt in twenty.")
	d.addText("quiet", 28, 82, fmt.Sprintf("HTTP over loopback, %s requests each, medians of %d runs.", formatThousands(s.findResult(libraryStrategy).rows[0].Requests), f.options.runs))
	d.drawAxes("percentile of requests")
	styles := newLineStyles(strategies)
	for _, h := range slices.Backward(headlineStrategies()) { // the first is drawn last, above the others
		res := s.findResult(h.name)
		d.drawLine(styles.findStyle(h.name), res.curves.latency, h.title, strings.Replace(describeCost(res.rows[0]), " requests and", ",", 1))
	}
	d.drawLabels()
	for _, strategy := range []string{baselineStrategy, libraryStrategy} {
		d.drawTailMarkers(styles.findStyle(strategy).class, s.findResult(strategy).rows[0], strategy == baselineStrategy)
	}
	return d.renderSVG(newStyleSheet(styles))
}

// drawTailMarkers marks p99 and p99.9 of row r in a chart, with the values above the marks, or to the left of the marks
// if left is set. class is the CSS class of the strategy's line.
func (c *canvas) drawTailMarkers(class string, r row, left bool) {
	for _, p := range []point{{100, r.P99}, {1000, r.P999}} {
		x, y := c.toPixel(p)
		c.addElement(`<circle class="dot %s" cx="%.1f" cy="%.1f" r="5"/>`, class, x, y)
		value := formatMillis(p.Y) + " ms"
		if left {
			c.addText("value end "+class, x-10, y-8, value)
		} else {
			c.addText("value middle "+class, x, y-13, value)
		}
	}
}
