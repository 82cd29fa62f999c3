package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
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
		file: "latency", title: "Latency by percentile", y: "milliseconds", logX: true, logY: true,
		curve: func(c curves) []point { return c.latency },
	}, {
		file: "p99", title: "p99 over time", x: "seconds", y: "milliseconds", logY: true,
		curve: func(c curves) []point { return c.p99 },
	}, {
		file: "extra", title: "Extra load over time", x: "seconds", y: "hedges per 100 requests",
		curve: func(c curves) []point { return c.extra },
	},
}

// The colours of charts besides those of the strategies. No strategy has one of these.
var (
	paper  = shade{rgb(0xffffff), rgb(0x0d1117)}
	ink    = shade{rgb(0x24292f), rgb(0xe6edf3)}
	grey   = shade{rgb(0x6e7781), rgb(0x9198a1)}
	grid   = shade{rgb(0xe8eaed), rgb(0x21262d)}
	faint  = shade{rgb(0xd0d7de), rgb(0x3d444d)} // lines that do not stand out
	shades = []shade{paper, ink, grey, grid, faint}
)

// A shade is a colour on light pages, which charts are drawn with, and the one
// that takes its place on dark pages, which only the report can have.
type shade struct{ light, dark color.RGBA }

const (
	chartWidth  = 9.6 * vg.Inch
	chartHeight = 4.8 * vg.Inch
	keyWidth    = 1.75 * vg.Inch
	dotsPerInch = 150
)

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
			base := filepath.Join(dir, f.options.engine.name()+"-"+s.scenario.name+"-"+c.file)
			svg, err := c.write(base, s)
			if err != nil {
				return "", err
			}
			section.add(c, svg)
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

// write draws the chart to base.png and base.svg and returns the latter.
func (c chart) write(base string, f finding) ([]byte, error) {
	p, err := c.plot(f)
	if err != nil {
		return nil, err
	}
	image := vgimg.NewWith(vgimg.UseWH(chartWidth, chartHeight), vgimg.UseDPI(dotsPerInch))
	c.draw(draw.New(image), p, f)
	var png, svg bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: image}).WriteTo(&png); err != nil {
		return nil, err
	}
	vector := vgsvg.New(chartWidth, chartHeight)
	c.draw(draw.New(vector), p, f)
	if _, err := vector.WriteTo(&svg); err != nil {
		return nil, err
	}
	drawn := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	if err := os.WriteFile(base+".png", png.Bytes(), 0o644); err != nil {
		return nil, err
	}
	return drawn, os.WriteFile(base+".svg", drawn, 0o644)
}

// manyLines is how many lines a reader can follow. Of more, some stand out and the others are faint.
const manyLines = 5

// standsOut reports whether the line of a strategy is one to look at.
func (f finding) standsOut(name string) bool {
	return len(f.results) <= manyLines || strategyOf(name).look.highlight
}

// plot draws the lines: those that stand out above the others, and ours last.
func (c chart) plot(f finding) (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = paper.light
	p.X.Label.Text, p.Y.Label.Text = c.x, c.y
	style(p)
	var below, lines, top []plot.Plotter
	low, high := math.Inf(1), math.Inf(-1)
	right := 0.0
	for _, r := range f.results {
		var xy plotter.XYs
		for _, pt := range c.curve(r.curves) {
			if c.logY && pt.Y <= 0 {
				continue
			}
			xy = append(xy, plotter.XY{X: pt.X, Y: pt.Y})
			low, high, right = min(low, pt.Y), max(high, pt.Y), max(right, pt.X)
		}
		if len(xy) < 2 {
			continue
		}
		l, err := plotter.NewLine(xy)
		if err != nil {
			return nil, fmt.Errorf("chart %s of %s: %w", c.file, f.scenario.name, err)
		}
		l.LineStyle = f.lineStyle(r.strategy)
		switch {
		case r.strategy == ours:
			top = append(top, l)
		case f.standsOut(r.strategy):
			lines = append(lines, l)
		default:
			below = append(below, l)
		}
	}
	net := plotter.NewGrid()
	net.Vertical.Color, net.Horizontal.Color = grid.light, grid.light
	p.Add(net)
	p.Add(below...)
	p.Add(lines...)
	p.Add(top...)
	p.X.Min, p.X.Max = 0, right
	p.X.Tick.Marker = plot.ConstantTicks(even(right))
	if c.logX {
		p.X.Min = 2
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(percentiles(right))
	}
	if c.logY {
		p.Y.Min, p.Y.Max = low/1.1, high*1.1
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(oneTwoFive(p.Y.Min, p.Y.Max))
	} else {
		p.Y.Min, p.Y.Max = 0, max(high*1.05, 1)
		p.Y.Tick.Marker = plot.ConstantTicks(even(p.Y.Max))
	}
	return p, nil
}

func (f finding) lineStyle(name string) draw.LineStyle {
	s := strategyOf(name)
	l := draw.LineStyle{Color: s.look.light, Width: 1.7}
	switch {
	case name == ours:
		l.Width = 3
	case !f.standsOut(name):
		l.Color, l.Width = faint.light, 1
	}
	if s.look.dashed {
		l.Dashes = []vg.Length{4, 3}
	}
	return l
}

// style sets the type and the colours.
func style(p *plot.Plot) {
	sans := func(size vg.Length) font.Font {
		return font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size)
	}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font = sans(10)
		a.Label.TextStyle.Color = grey.light
		a.Label.Padding = 5
		a.Tick.Label.Font = sans(9.5)
		a.Tick.Label.Color = grey.light
		a.Tick.LineStyle.Width = 0
		a.LineStyle.Color = grey.light
		a.LineStyle.Width = 0.6
		a.Padding = 0
	}
}

// draw draws the title, the plot and, to its right, what the lines are.
func (c chart) draw(to draw.Canvas, p *plot.Plot, f finding) {
	to.SetColor(paper.light)
	to.Fill(to.Rectangle.Path())
	p.Draw(draw.Crop(to, 10, -keyWidth, 10, -42))

	text := p.X.Tick.Label
	text.Color, text.XAlign, text.YAlign = ink.light, draw.XLeft, draw.YCenter
	title := text
	title.Font = font.From(text.Font, 13)
	to.FillText(title, vg.Point{X: to.Min.X + 14, Y: to.Max.Y - 20}, c.title+": "+f.scenario.name)
	x, y := to.Max.X-keyWidth+14, to.Max.Y-52
	for _, r := range f.results {
		to.StrokeLine2(f.lineStyle(r.strategy), x, y, x+22, y)
		name := text
		if !f.standsOut(r.strategy) {
			name.Color = grey.light
		}
		to.FillText(name, vg.Point{X: x + 30, Y: y}, r.strategy)
		y -= 16
	}
}

// percentiles marks 1/(1−p) by p.
func percentiles(until float64) []plot.Tick {
	ticks := []plot.Tick{{Value: 2, Label: "p50"}, {Value: 10, Label: "p90"}, {Value: 20, Label: "p95"}}
	for nines := 2; math.Pow(10, float64(nines)) <= until*1.0001; nines++ {
		label := "p99"
		if nines > 2 {
			label += "." + strings.Repeat("9", nines-2)
		}
		ticks = append(ticks, plot.Tick{Value: math.Pow(10, float64(nines)), Label: label})
	}
	return ticks
}

// oneTwoFive marks 1, 2, 5, 10, 20 … between low and high: fewer if the range is wide, more if it is narrow.
func oneTwoFive(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(high / low); {
	case decades > 3:
		steps = []float64{1}
	case decades < 0.4:
		steps = []float64{1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9}
	case decades < 1.2:
		steps = []float64{1, 1.5, 2, 3, 4, 5, 7}
	}
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 4, 64)})
			}
		}
	}
	return ticks
}

// even marks whole steps from 0 to high, nine at most.
func even(high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(high/9)))
	for _, s := range []float64{1, 2, 3, 5, 10} {
		if high/(s*step) < 9 {
			step *= s
			break
		}
	}
	var ticks []plot.Tick
	for i := 0.0; i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return ticks
}
