package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// A chart is one plot of a scenario.
type chart struct {
	file  string // what the name of its file ends in
	title string
	x, y  string
	curve func(curves) []point
	logX  bool // 1/(1−p)
	logY  bool
}

var charts = []chart{
	{
		file: "latency", title: "Latency by percentile", x: "percentile of requests", y: "milliseconds", logX: true, logY: true,
		curve: func(c curves) []point { return c.latency },
	}, {
		file: "p99", title: "p99 over time", x: "seconds", y: "milliseconds", logY: true,
		curve: func(c curves) []point { return c.p99 },
	}, {
		file: "extra", title: "Extra load over time", x: "seconds", y: "hedges per 100 requests",
		curve: func(c curves) []point { return c.extra },
	},
}

// write puts the charts of every scenario and the HTML report into a directory,
// and returns the report's path.
func (f findings) write(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("-out: %w", err)
	}
	var page page
	for _, s := range f.scenarios {
		section := newSection(s)
		for _, c := range charts {
			if !c.drawable(s) {
				continue
			}
			drawn := c.draw(s)
			file := filepath.Join(dir, f.options.engine.profile().name+"-"+s.scenario.name+"-"+c.file+".svg")
			if err := os.WriteFile(file, drawn.svg(styleSheet(s.strategies())), 0o644); err != nil {
				return "", err
			}
			section.add(drawn)
		}
		page.Sections = append(page.Sections, section)
	}
	index := filepath.Join(dir, "report.html")
	return index, page.write(index, f)
}

// drawable reports whether there is something to draw.
func (c chart) drawable(f finding) bool {
	for _, r := range f.results {
		if len(c.curve(r.curves)) > 1 {
			return true
		}
	}
	return false
}

// manyLines is how many lines a reader can follow. Of more, some stand out and the others are faint.
const manyLines = 5

// standsOut reports whether the line of a strategy is one to look at.
func (f finding) standsOut(name string) bool {
	return len(f.results) <= manyLines || strategyOf(name).look.highlight
}

// strategies are the names of those that have lines.
func (f finding) strategies() (names []string) {
	for _, r := range f.results {
		names = append(names, r.strategy)
	}
	return names
}

// draw draws the lines, those that stand out above the others, and ours last.
func (c chart) draw(f finding) *canvas {
	curves := make(map[string][]point)
	low, high, right := math.Inf(1), math.Inf(-1), 0.0
	for _, r := range f.results {
		for _, p := range c.curve(r.curves) {
			if c.logY && p.Y <= 0 {
				continue
			}
			curves[r.strategy] = append(curves[r.strategy], p)
			low, high, right = min(low, p.Y), max(high, p.Y), max(right, p.X)
		}
	}
	d := &canvas{title: c.title + ": " + f.scenario.name, x: axis{high: right, ticks: even(right), grid: true}, y: axis{high: max(high*1.05, 1), grid: true}}
	d.y.ticks = even(d.y.high)
	if c.logX {
		d.x.low, d.x.log, d.x.ticks = 2, true, percentiles(right)
	}
	if c.logY {
		d.y.low, d.y.high, d.y.log = low/1.1, high*1.1, true
		d.y.ticks = oneTwoFive(d.y.low, d.y.high)
	}
	d.text("quiet", 28, plotTop-38, c.y)
	d.axes(c.x)
	for layer := range 3 {
		for _, r := range f.results {
			if points := curves[r.strategy]; len(points) > 1 && f.layer(r.strategy) == layer {
				d.line(f.class(r.strategy), points)
			}
		}
	}
	f.key(d)
	return d
}

// layer says which lines are above which.
func (f finding) layer(name string) int {
	switch {
	case name == ours:
		return 2
	case f.standsOut(name):
		return 1
	default:
		return 0
	}
}

// class is how the line of a strategy looks.
func (f finding) class(name string) string {
	class := "l-" + name
	if f.layer(name) == 0 {
		class = "faint"
	}
	if strategyOf(name).look.dashed {
		class += " dashed"
	}
	return class
}

// key says to the right of the plot what the lines are.
func (f finding) key(d *canvas) {
	x, y := plotRight+22, plotTop+4
	for _, r := range f.results {
		d.put(`<path class="line %s" d="M%g %gh24"/>`, f.class(r.strategy), x, y)
		class := "quiet"
		if f.standsOut(r.strategy) {
			class = "name f-" + r.strategy
		}
		d.text(class, x+33, y+4.5, r.strategy)
		y += min(21, (plotBottom-plotTop)/float64(len(f.results)))
	}
}
