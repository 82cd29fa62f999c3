package main

import (
	"encoding/xml"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An element is one of those that a drawing consists of.
type element struct {
	XMLName xml.Name
	Class   string    `xml:"class,attr"`
	D       string    `xml:"d,attr"`
	X       float64   `xml:"x,attr"`
	Y       float64   `xml:"y,attr"`
	Text    string    `xml:",chardata"`
	In      []element `xml:",any"`
}

func elements(t *testing.T, svg []byte) []element {
	t.Helper()
	var whole element
	require.NoError(t, xml.Unmarshal(svg, &whole), "%s", svg)
	return whole.In
}

// of returns the elements of a class.
func of(all []element, class string) (some []element) {
	for _, e := range all {
		for _, c := range strings.Fields(e.Class) {
			if c == class {
				some = append(some, e)
				break
			}
		}
	}
	return some
}

// twoResults are a strategy that never is faster than 10 ms, and ours.
func twoResults() finding {
	return finding{scenario: scenario{name: "a<b"}, results: []result{
		{strategy: ours, curves: curves{latency: []point{{2, 1}, {200, 10}}, extra: []point{{0, 0}, {10, 5}}}},
		{strategy: bare, curves: curves{latency: []point{{2, 10}, {20, 100}, {200, 1000}}, extra: []point{{0, 0}, {10, 0}}}},
	}}
}

func TestPointsOfAChartAreAtTheirPlaces(t *testing.T) {
	drawn := elements(t, charts[0].draw(twoResults()).svg(""))
	lines := of(drawn, "line")
	require.Len(t, lines, 4, "two lines, and what they are in the key")
	assert.Equal(t, []string{"line l-none", "line l-hedge"}, []string{lines[0].Class, lines[1].Class}, "ours is above the others")
	// From 2 to 200 is two decades, and so 20 is in the middle. The vertical axis is from 1/1.1 to 1100 ms.
	d := lines[0].D
	assert.Regexp(t, `^M70\.0 [\d.]+L344\.0 [\d.]+L618\.0 [\d.]+$`, d)
	height := func(ms float64) float64 { return 376 - 272*math.Log(ms*1.1)/math.Log(1000*1.1*1.1) }
	for i, at := range regexp.MustCompile(` ([\d.]+)`).FindAllStringSubmatch(d, -1) {
		assert.InDelta(t, height(math.Pow10(1+i)), number64(t, at[1]), 0.06)
	}
	assert.Regexp(t, `^M70\.0 [\d.]+L618\.0 [\d.]+$`, lines[1].D)
	names := append(of(drawn, "f-hedge"), of(drawn, "f-none")...)
	require.Len(t, names, 2)
	assert.Equal(t, []string{"hedge", "none"}, []string{names[0].Text, names[1].Text})
	assert.Equal(t, "Latency by percentile: a<b", of(drawn, "title")[0].Text)
}

func number64(t *testing.T, s string) (x float64) {
	t.Helper()
	require.NoError(t, xml.Unmarshal([]byte("<x>"+s+"</x>"), &x))
	return x
}

func TestTicksAreBesideTheirLines(t *testing.T) {
	drawn := elements(t, charts[2].draw(twoResults()).svg(""))
	var below, beside []element
	for _, e := range of(drawn, "tick") {
		if strings.Contains(e.Class, "end") {
			beside = append(beside, e)
		} else {
			below = append(below, e)
		}
	}
	// Five hedges per 100 requests are 1/1.05 of the height.
	assert.Equal(t, "0", beside[0].Text)
	assert.InDelta(t, 376+4, beside[0].Y, 0.06)
	assert.Equal(t, "5", beside[len(beside)-1].Text)
	assert.InDelta(t, 376-272/1.05+4, beside[len(beside)-1].Y, 0.06)
	assert.Equal(t, "0", below[0].Text)
	assert.InDelta(t, 70, below[0].X, 0.06)
	assert.Equal(t, "10", below[len(below)-2].Text)
	assert.InDelta(t, 618, below[len(below)-2].X, 0.06)
	assert.Equal(t, "seconds", below[len(below)-1].Text)
}

func TestLabelsDoNotTouch(t *testing.T) {
	for _, most := range []float64{60, 600, 6000, 1e7} {
		c := canvas{x: axis{low: 2, high: most, log: true, ticks: percentiles(most)}, y: axis{high: 1}}
		c.axes("")
		all := of(elements(t, c.svg("")), "middle")
		all = all[:len(all)-1] // what the axis is
		assert.GreaterOrEqual(t, len(all), 3)
		for i := range all[1:] {
			assert.GreaterOrEqual(t, all[i+1].X-all[i].X, widestTick-0.1, "%s and %s of %v", all[i].Text, all[i+1].Text, most)
		}
	}
	many := twoResults()
	for _, s := range strategies {
		many.results = append(many.results, result{strategy: s.name})
	}
	drawn := elements(t, charts[0].draw(many).svg(""))
	for _, e := range drawn {
		assert.LessOrEqual(t, e.Y, canvasHeight-10, e.Text)
	}
	assert.NotEmpty(t, of(drawn, "dashed"), "no client can do what an oracle does")
	assert.NotEmpty(t, of(drawn, "faint"), "few of many stand out")
}

func TestFileOfAChartHasItsColoursForLightAndDarkPages(t *testing.T) {
	f := twoResults()
	svg := string(charts[0].draw(f).svg(styleSheet(f.strategies())))
	assert.Contains(t, svg, "prefers-color-scheme:dark")
	look := strategyOf(ours).look
	for _, colour := range []string{look.light, look.dark, paper.light, paper.dark} {
		assert.Contains(t, svg, colour)
	}
}

// An axis of nothing but zeros has an end.
func TestTicksOfNothingAreOne(t *testing.T) {
	assert.Equal(t, []tick{{0, "0"}}, even(0))
	assert.Len(t, even(90), 5, "nine at most")
}
