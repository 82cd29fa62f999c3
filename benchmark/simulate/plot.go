package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// drawLatencies draws the latencies by percentile in the results f of one scenario, with a labelled line for each
// strategy in the style of the strategy. The line of this library is on top. It returns nil if no line has two points.
func drawLatencies(f scenarioResults, styles lineStyles) *chart {
	low, high, right := math.Inf(1), math.Inf(-1), 0.0
	var drawn []strategyResult
	for _, r := range f.results {
		line := slices.DeleteFunc(slices.Clone(r.curve), func(p point) bool { return p.Y <= 0 })
		if len(line) < 2 {
			continue
		}
		for _, p := range line {
			low, high, right = min(low, p.Y), max(high, p.Y), max(right, p.X)
		}
		drawn = append(drawn, strategyResult{strategy: r.strategy, curve: line})
	}
	if len(drawn) == 0 {
		return nil
	}
	d := &chart{title: "Latency by percentile: " + f.scenario.name, x: newPercentileAxis(right), y: newLogarithmicAxis(low/1.1, high*1.1)}
	d.addText("quiet", 28, plotTop-20, "milliseconds")
	d.drawAxes("percentile of requests")
	for _, isOnTop := range []bool{false, true} {
		for _, r := range drawn {
			if isOnTop == (r.strategy == libraryStrategy) {
				d.drawLine(styles.findStyle(r.strategy), r.curve, r.strategy)
			}
		}
	}
	d.drawLabels()
	return d
}

// titledStrategies returns the strategies with a title, which README's table and chart show. This library is first.
func titledStrategies() []strategy {
	return filterStrategies(func(s strategy) bool { return s.title != "" })
}

const (
	pictureTitle = "Latency by percentile, with and without hedging"
	pictureMaxX  = 2500 // 1/(1−p) at the right edge: p99.96
)

// drawReadmeChart returns README's chart as SVG: the latency curves of the first scenario in the results f. Its
// description has the figures of README's table, which come from the same run.
func drawReadmeChart(f engineResults) []byte {
	s := f.scenarios[0]
	var strategies, described []string
	highest := 0.0
	for _, h := range titledStrategies() {
		strategies = append(strategies, h.name)
		res := s.findResult(h.name)
		whole := res.rows[0]
		described = append(described, fmt.Sprintf("%s: p99 %s ms, p99.9 %s ms, %s", h.title, formatMillis(whole.P99), formatMillis(whole.P999), describeCost(whole)))
		for _, p := range res.curve {
			if p.X <= pictureMaxX {
				highest = max(highest, p.Y)
			}
		}
	}
	d := &chart{
		title: pictureTitle, description: strings.Join(described, "; ") + ".",
		x: newPercentileAxis(pictureMaxX), y: newLinearAxis(math.Ceil(highest/20) * 20),
	}
	d.y.ticks[len(d.y.ticks)-1].label += " ms"
	d.addText("quiet", 28, 63, "The published benchmark of bhope/hedge: 20 callers; 5 ms ± 2 ms, and ten times as long for one attempt in twenty.")
	d.addText("quiet", 28, 82, fmt.Sprintf("HTTP over loopback, %s requests each, medians of %d runs.", formatThousands(s.findResult(libraryStrategy).rows[0].Requests), f.options.runs))
	d.drawAxes("percentile of requests")
	styles := newLineStyles(strategies)
	for _, h := range slices.Backward(titledStrategies()) { // the first is drawn last, above the others
		res := s.findResult(h.name)
		d.drawLine(styles.findStyle(h.name), res.curve, h.title, strings.Replace(describeCost(res.rows[0]), " requests and", ",", 1))
	}
	d.drawLabels()
	for _, strategy := range []string{baselineStrategy, libraryStrategy} {
		d.drawTailMarkers(styles.findStyle(strategy).class, s.findResult(strategy).rows[0], strategy == baselineStrategy)
	}
	return d.renderSVG(newStyleSheet(styles))
}

// drawTailMarkers marks p99 and p99.9 of row r in a chart, with the values above the marks, or to the left of the marks
// if left is set. class is the CSS class of the strategy's line.
func (c *chart) drawTailMarkers(class string, r row, left bool) {
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
