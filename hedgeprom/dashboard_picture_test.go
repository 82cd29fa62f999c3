package hedgeprom_test

import (
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	pictureFile = "../docs/dashboard.svg"
	pictureStep = 3 * time.Second // between points
	pictureSpan = 90 * time.Second

	columnWidth, rowHeight = 50, 27 // of the dashboard's grid, in pixels
)

// pictureStyle has eight colours of lines, for light and for dark pages.
const pictureStyle = `<style>text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;fill:#1f2328}.value{font-size:30px;text-anchor:middle;fill:#1d4ed8}` +
	`.legend{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}.page{fill:#f6f8fa}.panel{fill:#fff;stroke:#d1d9e0}.grid{stroke:#d1d9e0}polyline{fill:none;stroke-width:2;stroke-linejoin:round}` +
	`.c0{stroke:#1d4ed8}.c1{stroke:#c2410c}.c2{stroke:#15803d}.c3{stroke:#7e22ce}.c4{stroke:#b91c1c}.c5{stroke:#0e7490}.c6{stroke:#a16207}.c7{stroke:#6b7280}` +
	`@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}.value{fill:#79a7ff}.page{fill:#010409}.panel{fill:#0d1117;stroke:#3d444d}.grid{stroke:#3d444d}` +
	`.c0{stroke:#6d95ff}.c1{stroke:#fb923c}.c2{stroke:#4ade80}.c3{stroke:#c084fc}.c4{stroke:#f87171}.c5{stroke:#22d3ee}.c6{stroke:#facc15}.c7{stroke:#9ca3af}}</style>`

// A dashboardPicture is an SVG of the dashboard as it opens, with the last minutes of a service.
type dashboardPicture struct {
	strings.Builder
	from, to time.Time
}

// text writes text at a point.
func (b *dashboardPicture) text(class string, x, y int, text string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`, class, x, y, html.EscapeString(text))
}

// drawDashboard draws the dashboard with the given variables to pictureFile.
func drawDashboard(t *testing.T, p prometheusServer, d dashboard, variables map[string]string) {
	variables["__rate_interval"] = "15s"
	now := time.Now().Add(-2 * time.Second)
	b := &dashboardPicture{from: now.Add(-pictureSpan), to: now}
	last := d.Panels[len(d.Panels)-1].GridPos
	width, height := 24*columnWidth+16, (last.Y+last.H)*rowHeight+48
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="Dashboard">`+"\n%[3]s\n", width, height, pictureStyle)
	fmt.Fprintf(b, `<rect class="page" width="%d" height="%d"/>`, width, height)
	b.text("title", 14, 26, setVariables("Hedging · cluster $cluster · namespace $namespace · job $job · client All · host All", variables))
	for _, panel := range d.Panels {
		b.WriteString("\n")
		x, y, w, h := 8+panel.GridPos.X*columnWidth, 40+panel.GridPos.Y*rowHeight, panel.GridPos.W*columnWidth-8, panel.GridPos.H*rowHeight-8
		if panel.Type == "row" {
			b.text("title", x+4, y+15, map[bool]string{false: "▾ ", true: "▸ "}[panel.Collapsed]+panel.Title)
			continue
		}
		fmt.Fprintf(b, `<rect class="panel" x="%d" y="%d" width="%d" height="%d" rx="4"/>`, x, y, w, h)
		b.text("title", x+12, y+20, panel.Title)
		lines := make(promMatrix)
		for _, target := range panel.Targets {
			more, err := p.query(target, variables, b.from, b.to, pictureStep)
			require.NoError(t, err)
			maps.Copy(lines, more)
		}
		switch unit := panel.FieldConfig.Defaults.Unit; {
		case len(lines) == 0:
			b.text("middle", x+w/2, y+h/2, panel.FieldConfig.Defaults.NoValue)
		case panel.Type == "stat":
			for _, points := range lines {
				b.text("value", x+w/2, y+h/2+18, formatUnit(points[slices.Max(slices.Collect(maps.Keys(points)))], unit))
			}
		default:
			b.drawLines(x, y, w, h, lines, unit)
		}
	}
	b.WriteString("\n</svg>\n")
	require.NoError(t, os.WriteFile(pictureFile, []byte(b.String()), 0o644)) //nolint:gosec // it is in the repository
}

// drawLines draws the lines, their axes and their legend into a panel.
func (b *dashboardPicture) drawLines(x, y, w, h int, lines promMatrix, unit string) {
	highest, longest := 0.001, 0
	for legend, points := range lines {
		highest, longest = max(highest, slices.Max(slices.Collect(maps.Values(points)))), max(longest, len(legend))
	}
	inRow := min(4, w/(6*longest+28))
	left, right, top, bottom := x+70, x+w-14, y+36, y+h-26-(len(lines)+inRow-1)/inRow*16
	limit := math.Pow(10, math.Floor(math.Log10(highest)))
	limit *= math.Ceil(highest / limit)
	for i := range 3 {
		at := bottom - (bottom-top)*i/2
		fmt.Fprintf(b, `<path class="grid" d="M%d %dH%d"/>`, left, at, right)
		b.text("end", left-6, at+4, formatUnit(limit*float64(i)/2, unit))
	}
	b.text("", left, bottom+16, fmt.Sprintf("%.0f s ago", pictureSpan.Seconds()))
	b.text("end", right, bottom+16, "now")
	for i, legend := range slices.Sorted(maps.Keys(lines)) {
		points := lines[legend]
		fmt.Fprintf(b, `<polyline class="c%d" points="`, i%8)
		for _, at := range slices.Sorted(maps.Keys(points)) {
			share := (at - float64(b.from.Unix())) / pictureSpan.Seconds()
			fmt.Fprintf(b, "%.0f,%.1f ", float64(left)+share*float64(right-left), float64(bottom)-points[at]/limit*float64(bottom-top))
		}
		column, row := i%inRow, i/inRow
		lx, ly := x+14+column*(w-20)/inRow, bottom+34+row*16
		fmt.Fprintf(b, `"/><path class="c%d" stroke-width="3" d="M%d %dh14"/>`, i%8, lx, ly-4)
		b.text("legend", lx+20, ly, legend)
	}
}

// formatUnit formats a value in a unit of Grafana.
func formatUnit(v float64, unit string) string {
	if unit == "s" && v < 1 {
		v, unit = v*1000, "ms"
	} else if unit == "percentunit" {
		v, unit = v*100, "%"
	}
	return fmt.Sprintf("%.3g %s", v, strings.NewReplacer("reqps", "/s", "short", "").Replace(unit))
}

// TestDashboardPictureHasAllPanels fails if the dashboard has changed since its picture was drawn.
func TestDashboardPictureHasAllPanels(t *testing.T) {
	b, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(b), 60_000)
	d, _ := readDashboard(t)
	for _, panel := range d.Panels {
		assert.Contains(t, string(b), html.EscapeString(panel.Title)+"</text>")
	}
}
