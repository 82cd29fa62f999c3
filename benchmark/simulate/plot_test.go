package main

import (
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twoResults returns the results of two strategies: hedge, and a strategy that is never faster than 10 ms.
func twoResults() scenarioResults {
	return scenarioResults{scenario: scenario{name: "a<b"}, results: []strategyResult{
		{strategy: libraryStrategy, curve: []point{{2, 1}, {200, 10}}},
		{strategy: baselineStrategy, curve: []point{{2, 10}, {20, 100}, {200, 1000}}},
	}}
}

func drawTwoResults(t *testing.T) []element {
	t.Helper()
	f := twoResults()
	return parseSVG(t, drawLatencies(f, newLineStyles(f.strategies())).renderSVG(""))
}

func TestChartDrawsPointsToScale(t *testing.T) {
	drawn := drawTwoResults(t)
	lines := elementsOfClass(drawn, "line")
	require.Len(t, lines, 2)
	assert.Equal(t, []string{"line s1", "line s0"}, []string{lines[0].Class, lines[1].Class}, "hedge is above the others")
	// From 2 to 200 is two decades, so 20 is in the middle. The vertical axis is from 1/1.1 to 1100 ms.
	d := lines[0].D
	assert.Regexp(t, `^M70\.0 [\d.]+L337\.0 [\d.]+L604\.0 [\d.]+$`, d)
	height := func(ms float64) float64 { return 376 - 272*math.Log(ms*1.1)/math.Log(1000*1.1*1.1) }
	for i, match := range regexp.MustCompile(` ([\d.]+)`).FindAllStringSubmatch(d, -1) {
		y, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		assert.InDelta(t, height(math.Pow10(1+i)), y, 0.06)
	}
	assert.Regexp(t, `^M70\.0 [\d.]+L604\.0 [\d.]+$`, lines[1].D)
	assert.Equal(t, []string{"none", "hedge"}, texts(elementsOfClass(drawn, "label")), "from above")
	assert.Equal(t, "Latency by percentile: a<b", elementsOfClass(drawn, "title")[0].Text)
}

func TestChartLabelsEveryStrategy(t *testing.T) {
	var f scenarioResults
	for _, s := range strategies {
		f.results = append(f.results, strategyResult{strategy: s.name, curve: []point{{2, 1}, {200, 10}}})
	}
	drawn := parseSVG(t, drawLatencies(f, newLineStyles(f.strategies())).renderSVG(""))
	assert.ElementsMatch(t, f.strategies(), texts(elementsOfClass(drawn, "label")))
	for _, e := range drawn {
		assert.LessOrEqual(t, e.Y, chartHeight-10, e.Text)
	}
}

func TestChartWithoutPointsIsNotDrawn(t *testing.T) {
	f := scenarioResults{results: []strategyResult{{strategy: libraryStrategy, curve: []point{{2, 1}}}}}
	assert.Nil(t, drawLatencies(f, newLineStyles(f.strategies())))
}

func TestAxisOfZerosHasOneTick(t *testing.T) {
	assert.Equal(t, []tick{{0, "0"}}, newLinearAxis(0).ticks)
	assert.Len(t, newLinearAxis(90).ticks, 5, "nine at most")
}
