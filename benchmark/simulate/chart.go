package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The geometry of every drawing, in pixels.
const (
	chartWidth, chartHeight = 840.0, 432.0
	plotLeft, plotRight     = 70.0, 604.0
	plotTop, plotBottom     = 104.0, 376.0
	labelLeft               = plotRight + 24 // of the labels of lines
	labelLineHeight         = 17.0
	minTickDistance         = 36.0 // between labels of the horizontal axis
)

// A chart is drawn as SVG: lines between two axes, with a label beside the end of each line. Elements have CSS
// classes, to which newStyleSheet assigns colours.
type chart struct {
	title, description string // the description is for readers who cannot see the drawing
	x, y               axis
	labels             []lineLabel
	body               bytes.Buffer
}

// A lineLabel is the label of a line in a chart, with the end of the line in pixels.
type lineLabel struct {
	class string
	x, y  float64
	texts []string // one per row; the first has the colour of the line
}

func (c *chart) toPixel(p point) (x, y float64) {
	return plotLeft + (plotRight-plotLeft)*c.x.toFraction(p.X), plotBottom - (plotBottom-plotTop)*c.y.toFraction(p.Y)
}

func (c *chart) addElement(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

func (c *chart) addText(class string, x, y float64, text string) {
	c.addElement(`<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, html.EscapeString(text))
}

// drawAxes draws the grid, the labels of the ticks, and the title of the horizontal axis. It leaves out ticks of the
// horizontal axis whose labels would overlap.
func (c *chart) drawAxes(xTitle string) {
	for _, t := range c.y.ticks {
		_, y := c.toPixel(point{c.x.low, t.value})
		c.addElement(`<path class="grid" d="M%g %.1fH%g"/>`, plotLeft, y, plotRight)
		c.addText("tick end", plotLeft-10, y+4, t.label)
	}
	last := math.Inf(-1)
	for _, t := range c.x.ticks {
		x, _ := c.toPixel(point{t.value, c.y.low})
		if x-last < minTickDistance {
			continue
		}
		last = x
		c.addElement(`<path class="grid" d="M%.1f %gV%g"/>`, x, plotTop, plotBottom)
		c.addText("tick middle", x, plotBottom+22, t.label)
	}
	c.addText("tick middle", (plotLeft+plotRight)/2, plotBottom+42, xTitle)
}

// drawLine draws a line through the points in the range of the horizontal axis. texts are the rows of the line's label.
func (c *chart) drawLine(style lineStyle, points []point, texts ...string) {
	var path strings.Builder
	label, command := lineLabel{class: style.class, texts: texts}, "M"
	for _, p := range points {
		if p.X < c.x.low || p.X > c.x.high*1.001 {
			continue
		}
		label.x, label.y = c.toPixel(p)
		fmt.Fprintf(&path, "%s%.1f %.1f", command, label.x, label.y)
		command = "L"
	}
	c.addElement(`<path class="line %s" d="%s"/>`, style.class, path.String())
	c.labels = append(c.labels, label)
}

// drawLabels draws the labels of all lines to the right of the chart, as near to the ends of the lines as possible
// without overlap. A thin line connects each label with its line.
func (c *chart) drawLabels() {
	slices.SortStableFunc(c.labels, func(a, b lineLabel) int { return cmp.Compare(a.y, b.y) })
	var ends []float64
	rows := 1
	for _, l := range c.labels {
		ends = append(ends, l.y)
		rows = max(rows, len(l.texts))
	}
	top, bottom := plotTop, plotBottom-float64(rows-1)*labelLineHeight
	distance := min(float64(rows)*labelLineHeight+float64(rows-1), (bottom-top)/max(float64(len(ends)-1), 1))
	for i, y := range separatePositions(ends, distance, top, bottom) {
		l := c.labels[i]
		c.addElement(`<path class="leader %s" d="M%.1f %.1fL%g %.1f"/>`, l.class, l.x, l.y, labelLeft-5, y)
		class := "label " + l.class
		for row, text := range l.texts {
			c.addText(class, labelLeft, y+4.5+float64(row)*labelLineHeight, text)
			class = "tick"
		}
	}
}

// separatePositions returns positions for labels that are at least distance apart. They are as near to the ascending
// wanted positions as possible by least squares. They are between low and high, or begin at low if space is short.
func separatePositions(wanted []float64, distance, low, high float64) []float64 {
	// Less i*distance, the i-th position must only be no less than the one before. This is isotonic regression; adjacent
	// violators are pooled.
	type pool struct {
		mean float64
		size int
	}
	var pools []pool
	for i, w := range wanted {
		pools = append(pools, pool{w - float64(i)*distance, 1})
		for n := len(pools); n > 1 && pools[n-2].mean > pools[n-1].mean; n = len(pools) {
			a, b := pools[n-2], pools[n-1]
			joined := pool{(a.mean*float64(a.size) + b.mean*float64(b.size)) / float64(a.size+b.size), a.size + b.size}
			pools = append(pools[:n-2], joined)
		}
	}
	last := high - distance*float64(len(wanted)-1)
	var positions []float64
	for _, p := range pools {
		for range p.size {
			positions = append(positions, max(low, min(p.mean, last))+float64(len(positions))*distance)
		}
	}
	return positions
}

// renderSVG returns the drawing as SVG. style is empty if the drawing is part of a page with a style sheet.
func (c *chart) renderSVG(style string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img" aria-label="%s">`+"\n",
		chartWidth, chartHeight, html.EscapeString(c.title))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(c.title))
	if c.description != "" {
		fmt.Fprintf(&b, "<desc>%s</desc>\n", html.EscapeString(c.description))
	}
	if style != "" {
		fmt.Fprintf(&b, "<style>%s</style>\n", style)
	}
	fmt.Fprintf(&b, `<rect class="card" x=".5" y=".5" width="%g" height="%g" rx="12"/>`+"\n", chartWidth-1, chartHeight-1)
	fmt.Fprintf(&b, `<text class="title" x="28" y="40">%s</text>`+"\n%s</svg>\n", html.EscapeString(c.title), c.body.Bytes())
	return b.Bytes()
}
