package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// The geometry of all drawings, in pixels.
const (
	canvasWidth, canvasHeight = 840.0, 432.0
	plotLeft, plotRight       = 70.0, 618.0
	plotTop, plotBottom       = 104.0, 376.0
	widestTick                = 36.0 // what a label below the horizontal axis needs
)

// A canvas is an SVG of lines between two axes. Its colours are classes: see styleSheet.
type canvas struct {
	title, about string // about is the drawing in words
	x, y         axis
	body         bytes.Buffer
}

// An axis is linear, or logarithmic.
type axis struct {
	low, high float64
	log       bool
	ticks     []tick
	grid      bool // a line across the plot at each tick
}

type tick struct {
	value float64
	label string
}

// at returns how far along the axis a value is, from 0 to 1.
func (a axis) at(v float64) float64 {
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// at returns the place of a point.
func (c *canvas) at(p point) (x, y float64) {
	return plotLeft + (plotRight-plotLeft)*c.x.at(p.X), plotBottom - (plotBottom-plotTop)*c.y.at(p.Y)
}

func (c *canvas) put(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

func (c *canvas) text(class string, x, y float64, s string) {
	c.put(`<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, html.EscapeString(s))
}

// axes draws the grid and the labels of the ticks, without those that would touch the one before.
func (c *canvas) axes(below string) {
	for _, t := range c.y.ticks {
		_, y := c.at(point{c.x.low, t.value})
		if c.y.grid {
			c.put(`<path class="grid" d="M%g %.1fH%g"/>`, plotLeft, y, plotRight)
		}
		c.text("tick end", plotLeft-10, y+4, t.label)
	}
	last := math.Inf(-1)
	for _, t := range c.x.ticks {
		x, _ := c.at(point{t.value, c.y.low})
		if x-last < widestTick {
			continue
		}
		last = x
		if c.x.grid {
			c.put(`<path class="grid" d="M%.1f %gV%g"/>`, x, plotTop, plotBottom)
		}
		c.text("tick middle", x, plotBottom+22, t.label)
	}
	c.text("tick middle", (plotLeft+plotRight)/2, plotBottom+42, below)
}

// line draws the points that are between the ends of the horizontal axis.
func (c *canvas) line(class string, points []point) {
	var path strings.Builder
	step := "M"
	for _, p := range points {
		if p.X >= c.x.low && p.X <= c.x.high*1.001 {
			x, y := c.at(p)
			fmt.Fprintf(&path, "%s%.1f %.1f", step, x, y)
			step = "L"
		}
	}
	c.put(`<path class="line %s" d="%s"/>`, class, path.String())
}

// svg returns the drawing, which has a style sheet of its own if it is not part of a page that has one.
func (c *canvas) svg(style string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img" aria-label="%s">`+"\n",
		canvasWidth, canvasHeight, html.EscapeString(c.title))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(c.title))
	if c.about != "" {
		fmt.Fprintf(&b, "<desc>%s</desc>\n", html.EscapeString(c.about))
	}
	if style != "" {
		fmt.Fprintf(&b, "<style>%s</style>\n", style)
	}
	fmt.Fprintf(&b, `<rect class="card" x=".5" y=".5" width="%g" height="%g" rx="12"/>`+"\n", canvasWidth-1, canvasHeight-1)
	fmt.Fprintf(&b, `<text class="title" x="28" y="40">%s</text>`+"\n%s</svg>\n", html.EscapeString(c.title), c.body.Bytes())
	return b.Bytes()
}

// A shade is a colour on light pages, as in CSS, and the one that takes its place on dark pages.
type shade struct{ light, dark string }

// The colours of drawings besides those of the strategies.
var (
	paper = shade{"#ffffff", "#0d1117"}
	ink   = shade{"#1f2328", "#f0f6fc"}
	grey  = shade{"#57606a", "#9198a1"}
	grid  = shade{"#d1d9e0", "#3d444d"}
	faint = shade{"#b7bfc8", "#59616b"} // lines that do not stand out
)

// styleSheet is the style sheet of drawings in which these strategies have lines of class l-NAME,
// text of f-NAME and dots of d-NAME.
func styleSheet(names []string) string {
	var b strings.Builder
	b.WriteString("text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}" +
		".title{font-size:20px;font-weight:650}.label,.value{font-size:14px;font-weight:650}.name{font-weight:650}" +
		".tick{font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}" +
		".grid{stroke-width:.7}.line{fill:none;stroke-width:2.5;stroke-linejoin:round;stroke-linecap:round}" +
		".faint{stroke-width:1.2}.l-" + ours + "{stroke-width:4}.dashed{stroke-dasharray:6 4;stroke-linecap:butt}.dot{stroke-width:2}")
	colours := func(of func(shade) string) {
		fmt.Fprintf(&b, "text{fill:%s}.title{fill:%s}.card{fill:%s;stroke:%s}.grid{stroke:%[4]s}.faint{stroke:%[5]s}.dot{stroke:%[3]s}",
			of(grey), of(ink), of(paper), of(grid), of(faint))
		for _, name := range names {
			fmt.Fprintf(&b, ".l-%s{stroke:%s}.f-%[1]s,.d-%[1]s{fill:%[2]s}", name, of(strategyOf(name).look.shade))
		}
	}
	colours(func(s shade) string { return s.light })
	b.WriteString("@media(prefers-color-scheme:dark){")
	colours(func(s shade) string { return s.dark })
	b.WriteString("}")
	return b.String()
}

// percentiles marks 1/(1−p) by p.
func percentiles(until float64) []tick {
	ticks := []tick{{2, "p50"}, {10, "p90"}, {20, "p95"}}
	for nines := 2; math.Pow(10, float64(nines)) <= until*1.0001; nines++ {
		label := "p99"
		if nines > 2 {
			label += "." + strings.Repeat("9", nines-2)
		}
		ticks = append(ticks, tick{math.Pow(10, float64(nines)), label})
	}
	return ticks
}

// oneTwoFive marks 1, 2, 5, 10, 20 … between low and high: fewer if the range is wide, more if it is narrow.
func oneTwoFive(low, high float64) []tick {
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
					label = thousands(int(math.Round(v)))
				}
				ticks = append(ticks, tick{v, label})
			}
		}
	}
	return ticks
}

// even marks whole steps from 0 to high, nine at most.
func even(high float64) []tick {
	if high <= 0 {
		return []tick{{0, "0"}}
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
	return ticks
}
