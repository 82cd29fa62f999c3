package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// headlineStrategies returns the strategies in README's table and picture: all strategies with a title, and this
// library first.
func headlineStrategies() []strategy {
	all := []strategy{findStrategy(ours)}
	for _, s := range strategies {
		if s.title != "" && s.name != ours {
			all = append(all, s)
		}
	}
	return all
}

const (
	pictureTitle = "Latency by percentile, with and without hedging"
	pictureRight = 2500 // 1/(1−p) at the right edge: p99.96
)

// drawPicture returns README's picture as SVG: the latency curves of the first scenario in f. Its description has the
// figures of README's table, from the same run.
func drawPicture(f engineResults) []byte {
	s := f.scenarios[0]
	var strategies, described []string
	highest := 0.0
	for _, h := range headlineStrategies() {
		strategies = append(strategies, h.name)
		res := s.find(h.name)
		whole := res.rows[0]
		described = append(described, fmt.Sprintf("%s: p99 %s ms, p99.9 %s ms, %s", h.title, formatMillis(whole.P99), formatMillis(whole.P999), describeCost(whole)))
		for _, p := range res.curves.latency {
			if p.X <= pictureRight {
				highest = max(highest, p.Y)
			}
		}
	}
	d := &canvas{
		title: pictureTitle, description: strings.Join(described, "; ") + ".",
		x: newPercentileAxis(pictureRight), y: newLinearAxis(math.Ceil(highest/20) * 20),
	}
	d.y.ticks[len(d.y.ticks)-1].label += " ms"
	d.addText("quiet", 28, 63, "The published benchmark of bhope/hedge: 20 callers; 5 ms ± 2 ms, and ten times as long for one attempt in twenty.")
	d.addText("quiet", 28, 82, fmt.Sprintf("HTTP over loopback, %s requests each, medians of %d runs.", formatThousands(s.find(ours).rows[0].Requests), f.options.runs))
	d.drawAxes("percentile of requests")
	styles := newLineStyles(strategies)
	for _, h := range slices.Backward(headlineStrategies()) { // the first is drawn last, above the others
		res := s.find(h.name)
		d.drawLine(styles.find(h.name), res.curves.latency, h.title, abbreviateCost(res.rows[0]))
	}
	d.drawLabels()
	for _, strategy := range []string{baseline, ours} {
		d.drawTailValues(styles.find(strategy).class, s.find(strategy).rows[0], strategy == baseline)
	}
	return d.renderSVG(newStyleSheet(styles))
}

// drawTailValues marks p99 and p99.9 of row r in a chart. It writes the values above the marks, or to their left if
// left is set. class is the CSS class of the strategy's line.
func (c *canvas) drawTailValues(class string, r row, left bool) {
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

// abbreviateCost returns a short text with the extra requests and the connections in row r, for a label in a picture.
func abbreviateCost(r row) string {
	cost := formatPercent(r.Extra) + " extra"
	if r.Conns != nil {
		cost += ", " + formatThousands(*r.Conns) + " connections"
	}
	return cost
}
