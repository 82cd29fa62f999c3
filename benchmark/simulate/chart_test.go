package main

import (
	"encoding/xml"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An element of a drawing.
type element struct {
	XMLName xml.Name
	Class   string    `xml:"class,attr"`
	D       string    `xml:"d,attr"`
	X       float64   `xml:"x,attr"`
	Y       float64   `xml:"y,attr"`
	Text    string    `xml:",chardata"`
	In      []element `xml:",any"`
}

func parseSVG(t *testing.T, svg []byte) []element {
	t.Helper()
	var whole element
	require.NoError(t, xml.Unmarshal(svg, &whole), "%s", svg)
	return whole.In
}

// elementsOfClass returns the elements that have a class.
func elementsOfClass(all []element, class string) []element {
	return slices.DeleteFunc(slices.Clone(all), func(e element) bool { return !slices.Contains(strings.Fields(e.Class), class) })
}

func texts(all []element) (texts []string) {
	for _, e := range all {
		texts = append(texts, e.Text)
	}
	return texts
}

func TestChartLeavesOutTicksWhoseLabelsWouldOverlap(t *testing.T) {
	for _, high := range []float64{60, 600, 6000, 1e7} {
		c := chart{x: newPercentileAxis(high), y: axis{high: 1}}
		c.drawAxes("")
		labels := elementsOfClass(parseSVG(t, c.renderSVG("")), "middle")
		labels = labels[:len(labels)-1] // the title of the axis
		assert.GreaterOrEqual(t, len(labels), 3)
		for i := range labels[1:] {
			assert.GreaterOrEqual(t, labels[i+1].X-labels[i].X, minTickDistance-0.1, "%s and %s of %v", labels[i].Text, labels[i+1].Text, high)
		}
	}
}

func TestSeparatePositions(t *testing.T) {
	for _, tt := range []struct {
		wanted, positions []float64
	}{
		{nil, nil},
		{[]float64{10, 100}, []float64{10, 100}}, // far enough apart
		{[]float64{100, 100, 100}, []float64{80, 100, 120}}, // around their mean
		{[]float64{50, 60, 65, 150}, []float64{115. / 3, 175. / 3, 235. / 3, 150}},
		{[]float64{0, 0}, []float64{0, 20}},                                                    // at the upper end
		{[]float64{100, 200, 200}, []float64{100, 180, 200}},                                   // at the lower end
		{make([]float64, 12), []float64{0, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220}}, // too many
	} {
		assert.InDeltaSlice(t, tt.positions, separatePositions(tt.wanted, 20, 0, 200), 1e-9, "%v", tt.wanted)
	}
}

// A chart with three lines that end at the same point, and one below.
func TestLabelsOfLinesDoNotOverlap(t *testing.T) {
	c := chart{x: newLinearAxis(10), y: newLinearAxis(10)}
	styles := newLineStyles([]string{"none", "hedgedhttp-10ms", "failsafe-quantile", "hedge"})
	for i, style := range styles {
		end := 7.0
		if i == 3 {
			end = 1
		}
		c.drawLine(style, []point{{0, 0}, {10, end}}, style.strategy, "costs")
	}
	c.drawLabels()
	drawn := parseSVG(t, c.renderSVG(""))
	labels := elementsOfClass(drawn, "label")
	assert.Equal(t, []string{"none", "hedgedhttp-10ms", "failsafe-quantile", "hedge"}, texts(labels))
	for i := range labels[1:] {
		assert.GreaterOrEqual(t, labels[i+1].Y-labels[i].Y, 2*labelLineHeight)
	}
	_, end := c.toPixel(point{10, 7})
	assert.InDelta(t, end+4.5, labels[1].Y, 0.1, "the labels are around the end of their lines")
	for i, leader := range elementsOfClass(drawn, "leader") {
		assert.True(t, strings.HasPrefix(leader.D, "M604.0 "), leader.D)
		assert.Contains(t, leader.Class, styles[i].class)
	}
}
