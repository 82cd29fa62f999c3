package main

import (
	"context"
	"fmt"
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
	strategy string
	name     string
	note     string  // how it is set up
	points   []point // of the curve latency
	extra    float64 // hedges per 100 requests
}

// pictureLines are the lines, from the slowest to the fastest at the right edge.
var pictureLines = []pictureLine{
	{strategy: bare, name: "without hedging"},
	{strategy: "bhope-tuned", name: "bhope/hedge", note: "given the true rate"},
	{strategy: ours, name: "hedge", note: "no option set"},
}

// newPicture runs what the picture shows.
func newPicture(ctx context.Context, p *progress) (*picture, error) {
	seed := scenarioOf("reference")
	j := job{scenario: &seed, seed: 1, size: size{requests: pictureRequests}, progress: p}
	for _, l := range pictureLines {
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
	for _, l := range pictureLines {
		r := results[l.strategy]
		pic.requests = r.rows[0].Requests
		l.points, l.extra = r.curves.latency, r.rows[0].Extra
		pic.lines = append(pic.lines, l)
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

const (
	pictureRequests = 200_000
	pictureTitle    = "Latency by percentile, with and without hedging"
	pictureMost     = 2500 // 1/(1−p) at the right edge: p99.96
)

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
	d := &canvas{
		title: pictureTitle, about: p.about(),
		x: axis{low: 2, high: pictureMost, log: true, ticks: percentiles(pictureMost)}, y: axis{high: p.top(), grid: true},
	}
	for ms := 0.0; ms <= p.top(); ms += 20 {
		d.y.ticks = append(d.y.ticks, tick{ms, fmt.Sprintf("%.0f", ms)})
	}
	d.y.ticks[len(d.y.ticks)-1].label += " ms"
	d.text("quiet", 28, 63, fmt.Sprintf("%s requests from 20 callers. The server takes 5 ms ± 2 ms, and ten times as long for one attempt in twenty.", thousands(p.requests)))
	d.text("quiet", 28, 82, "Simulated in virtual time: the same figures on every machine.")
	d.axes("percentile of requests")
	var names []string
	for _, l := range p.lines {
		names = append(names, l.strategy)
		d.line("l-"+l.strategy, l.points)
	}
	for _, l := range p.lines {
		x, y := d.at(point{pictureMost, l.latency(pictureMost)})
		d.text("label f-"+l.strategy, x+14, y-4, l.name)
		for _, s := range l.notes() {
			y += 17
			d.text("quiet", x+14, y-4, s)
		}
	}
	// The figures that the reader takes away.
	for _, x := range []float64{100, 1000} {
		for _, l := range p.lines {
			if l.strategy != bare && l.strategy != ours {
				continue
			}
			px, py := d.at(point{x, l.latency(x)})
			d.put(`<circle class="dot d-%s" cx="%.1f" cy="%.1f" r="5"/>`, l.strategy, px, py)
			value := figureShort(l.latency(x)) + " ms"
			if l.strategy == bare {
				d.text("value end f-"+bare, px-10, py-8, value)
			} else {
				d.text("value middle f-"+ours, px, py-13, value)
			}
		}
	}
	return d.svg(styleSheet(names))
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

// figureShort shows milliseconds without digits that do not matter: 9.4, 16, 103.
func figureShort(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
