package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHeadlinePictureAndTableShowOneRun(t *testing.T) {
	skipIfShort(t)
	o, err := parseOptions(append(strings.Fields(referenceArgs), "-engine", "virtual", "-requests", "30000", "-runs", "2"), io.Discard)
	require.NoError(t, err)
	found, err := runScenarios(t.Context(), o, nil)
	require.NoError(t, err)
	svg := drawReadmeChart(found)
	drawn := parseSVG(t, svg)
	var titles []string
	for _, h := range titledStrategies() {
		titles = append(titles, h.title)
	}
	assert.ElementsMatch(t, titles, texts(elementsOfClass(drawn, "label")))
	assert.Len(t, elementsOfClass(drawn, "line"), len(titles))

	table := formatReadmeTable(found)
	for _, value := range texts(elementsOfClass(drawn, "value")) {
		assert.Contains(t, table, "| "+strings.TrimSuffix(value, " ms"))
	}
	assert.True(t, strings.Index(table, "**hedge (no option set)**") < strings.Index(table, "no hedging"))
	assert.Contains(t, table, "With hedge, p99 is ")

	assert.LessOrEqual(t, len(svg), 25_000)
	for _, external := range []string{"<script", "href", "@import", "url("} {
		assert.NotContains(t, string(svg), external)
	}
}

func TestReadmeAndItsPictureShowOneRun(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	picture, err := os.ReadFile("../../docs/tail.svg")
	require.NoError(t, err)
	description := elementsOfName(parseSVG(t, picture), "desc")[0].Text
	for _, h := range titledStrategies() {
		cells := regexp.MustCompile(`(?m)^\| (?:\*\*)?` + regexp.QuoteMeta(h.title) + `(?:\*\*)? \| (.*) \|$`).FindSubmatch(readme)
		require.NotNil(t, cells, "README has no row %s", h.title)
		values := strings.Split(string(cells[1]), " | ")
		require.Len(t, values, 5)
		p99, _, _ := strings.Cut(values[1], " ")
		p999, _, _ := strings.Cut(values[2], " ")
		assert.Contains(t, description, h.title+": p99 "+p99+" ms, p99.9 "+p999+" ms, "+values[3]+" extra requests and "+values[4]+" connections",
			"README's table and picture are of different runs; run make readme")
	}
}

func elementsOfName(all []element, name string) []element {
	return slices.DeleteFunc(slices.Clone(all), func(e element) bool { return e.XMLName.Local != name })
}
