package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHeadlinePictureAndTableShowOneRun(t *testing.T) {
	o, err := optionsOf(append(strings.Fields(referenceArgs), "-engine", "virtual", "-requests", "30000", "-runs", "2"), io.Discard)
	require.NoError(t, err)
	found, err := simulate(t.Context(), o, nil)
	require.NoError(t, err)
	svg := drawPicture(found)
	drawn := parseSVG(t, svg)
	var names []string
	for _, h := range headlineRows {
		names = append(names, h.name)
	}
	assert.ElementsMatch(t, names, texts(elementsOfClass(drawn, "label")))
	assert.Len(t, elementsOfClass(drawn, "line"), len(headlineRows))

	table := formatHeadline(found)
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
