package main

import (
	"bytes"
	"context"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// A picture is an SVG that shows by how much hedging shortens the tail. It is
// drawn from a run in virtual time, so that the same code draws the same bytes.
type picture struct {
	requests int
	lines    []pictureLine
}

type pictureLine struct {
	name   string
	note   string // how it is set up
	look   look
	width  float64
	points []point // of the curve latency
	extra  float64 // hedges per 100 requests
}

// pictureStrategies are the lines, from the slowest to the fastest at the right edge.
var pictureStrategies = []struct {
	strategy, name, note string
	width                float64
}{
	{bare, "without hedging", "", 2.5},
	{"published-told", "the published policy", "given the true rate", 2.5},
	{ours, "hedge", "no option set", 4},
}

// newPicture runs what the picture shows.
func newPicture(ctx context.Context, p *progress) (*picture, error) {
	j := job{scenario: scenarioOf("seed"), seed: 1, size: size{requests: pictureRequests}, progress: p}
	for _, l := range pictureStrategies {
		j.strategies = append(j.strategies, l.strategy)
	}
	var mu sync.Mutex
	results := make(map[string]result)
	err := virtualEngine{}.run(ctx, j, func(t trial) {
		mu.Lock()
		defer mu.Unlock()
		results[t.strategy] = t.result()
	})
	if err != nil {
		return nil, err
	}
	pic := new(picture)
	for _, l := range pictureStrategies {
		r := results[l.strategy]
		pic.requests = r.rows[0].Requests
		pic.lines = append(pic.lines, pictureLine{
			name: l.name, note: l.note, look: strategyOf(l.strategy).look, width: l.width, points: r.curves.latency, extra: r.rows[0].Extra,
		})
	}
	return pic, nil
}

// drawPicture runs what the picture shows and draws it to a file.
func drawPicture(ctx context.Context, file string, progress *progress) error {
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("-picture: %w", err)
	}
	p, err := newPicture(ctx, progress)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, p.svg(), 0o644); err != nil {
		return fmt.Errorf("-picture: %w", err)
	}
	return nil
}

// The picture's geometry, in pixels.
const (
	pictureWidth, pictureHeight = 840.0, 432.0
	plotLeft, plotRight         = 70.0, 618.0
	plotTop, plotBottom         = 104.0, 376.0

	pictureMost = 2500 // 1/(1−p) at the right edge: p99.96
)

const (
	pictureRequests = 200_000
	pictureTitle    = "Latency by percentile, with and without hedging"
)

// at returns the place of a latency at a percentile, which is given as 1/(1−p).
func (p *picture) at(x, ms float64) (float64, float64) {
	return plotLeft + (plotRight-plotLeft)*math.Log(x/2)/math.Log(pictureMost/2), plotBottom - (plotBottom-plotTop)*ms/p.top()
}

// top is the latency at the upper edge: the next multiple of 20 ms.
func (p *picture) top() float64 {
	highest := 0.0
	for _, l := range p.lines {
		for _, pt := range l.points {
			if pt.X <= pictureMost {
				highest = max(highest, pt.Y)
			}
		}
	}
	return math.Ceil(highest/20) * 20
}

func (p *picture) svg() []byte {
	var b bytes.Buffer
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(class string, x, y float64, s string) {
		out(`<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, s)
	}
	out(`<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img" aria-labelledby="title about">`, pictureWidth, pictureHeight)
	out(`<title id="title">%s</title>`, pictureTitle)
	out(`<desc id="about">%s</desc>`, p.about())
	out(`<style>%s</style>`, p.style())
	out(`<rect class="card" x=".5" y=".5" width="%g" height="%g" rx="12"/>`, pictureWidth-1, pictureHeight-1)
	text("title", 28, 40, pictureTitle)
	text("quiet", 28, 63, fmt.Sprintf("%s requests from 20 callers. The server takes 5 ms ± 2 ms, and ten times as long for one attempt in twenty.", thousands(p.requests)))
	text("quiet", 28, 82, "Simulated in virtual time: the same figures on every machine.")

	for ms := 0.0; ms <= p.top(); ms += 20 {
		_, y := p.at(2, ms)
		out(`<path class="grid" d="M%g %.1fH%g"/>`, plotLeft, y, plotRight)
		label := fmt.Sprintf("%.0f", ms)
		if ms == p.top() {
			label += " ms"
		}
		text("tick end", plotLeft-10, y+4, label)
	}
	for _, tick := range percentiles(pictureMost) {
		if x, _ := p.at(tick.Value, 0); tick.Label != "p95" {
			text("tick middle", x, plotBottom+22, tick.Label)
		}
	}
	text("tick middle", (plotLeft+plotRight)/2, plotBottom+42, "percentile of requests")

	for i, l := range p.lines {
		var path strings.Builder
		step := "M"
		for _, pt := range l.points {
			if pt.X <= pictureMost*1.001 {
				x, y := p.at(pt.X, pt.Y)
				fmt.Fprintf(&path, "%s%.1f %.1f", step, x, y)
				step = "L"
			}
		}
		out(`<path class="line l%d" d="%s"/>`, i, path.String())
	}
	for i, l := range p.lines {
		x, y := p.at(pictureMost, l.latency(pictureMost))
		text(fmt.Sprintf("label f%d", i), x+14, y-4, l.name)
		for _, s := range l.notes() {
			y += 17
			text("quiet", x+14, y-4, s)
		}
	}
	// The figures that the reader takes away.
	for _, x := range []float64{100, 1000} {
		for i, l := range p.lines {
			if pictureStrategies[i].strategy != bare && pictureStrategies[i].strategy != ours {
				continue
			}
			px, py := p.at(x, l.latency(x))
			out(`<circle class="dot d%d" cx="%.1f" cy="%.1f" r="5"/>`, i, px, py)
			value := figureShort(l.latency(x)) + " ms"
			if i == 0 {
				text("value end f0", px-10, py-8, value)
			} else {
				text(fmt.Sprintf("value middle f%d", i), px, py-13, value)
			}
		}
	}
	out(`</svg>`)
	return b.Bytes()
}

// latency returns the line's value at 1/(1−p): that of the nearest point.
func (l pictureLine) latency(x float64) float64 {
	best := l.points[0]
	for _, pt := range l.points {
		if math.Abs(math.Log(pt.X/x)) < math.Abs(math.Log(best.X/x)) {
			best = pt
		}
	}
	return best.Y
}

// notes are what is to be known besides the latency, first of all the extra load.
func (l pictureLine) notes() []string {
	if l.extra == 0 {
		return []string{"no extra requests"}
	}
	return []string{l.note, fmt.Sprintf("+%.1f %% requests", l.extra)}
}

// about is the picture in words, for those who cannot see it.
func (p *picture) about() string {
	var all []string
	for _, l := range p.lines {
		all = append(all, fmt.Sprintf("%s: p99 %s ms, p99.9 %s ms, %s",
			l.name, figureShort(l.latency(100)), figureShort(l.latency(1000)), strings.Join(l.notes(), ", ")))
	}
	return strings.Join(all, "; ") + "."
}

// style has the colours of light and dark pages.
func (p *picture) style() string {
	var b strings.Builder
	b.WriteString("text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#57606a}" +
		".title{font-size:20px;font-weight:650;fill:#1f2328}.label{font-size:14px;font-weight:650}.value{font-size:14px;font-weight:650}" +
		".tick{font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}" +
		".card{fill:#fff;stroke:#d1d9e0}.grid{stroke:#d1d9e0;stroke-width:.7}.line{fill:none;stroke-linejoin:round;stroke-linecap:round}" +
		".dot{stroke:#fff;stroke-width:2}")
	colours := func(pick func(look) color.RGBA) {
		for i, l := range p.lines {
			c := css(pick(l.look))
			fmt.Fprintf(&b, ".l%d{stroke:%s}.f%[1]d,.d%[1]d{fill:%[2]s}", i, c)
		}
	}
	for i, l := range p.lines {
		fmt.Fprintf(&b, ".l%d{stroke-width:%g}", i, l.width)
	}
	colours(func(l look) color.RGBA { return l.light })
	b.WriteString("@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}.card{fill:#0d1117;stroke:#3d444d}.grid{stroke:#3d444d}.dot{stroke:#0d1117}")
	colours(func(l look) color.RGBA { return l.dark })
	b.WriteString("}")
	return b.String()
}

// css writes a colour as CSS does.
func css(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// figureShort shows milliseconds without digits that do not matter: 9.4, 16, 103.
func figureShort(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
