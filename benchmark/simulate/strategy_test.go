package main

import (
	"image/color"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// contrast returns how much two colours differ in luminance, from 1 to 21: WCAG 2.2's definition.
func contrast(a, b color.RGBA) float64 {
	luminance := func(c color.RGBA) float64 {
		linear := func(v uint8) float64 {
			x := float64(v) / 255
			if x <= 0.04045 {
				return x / 12.92
			}
			return math.Pow((x+0.055)/1.055, 2.4)
		}
		return 0.2126*linear(c.R) + 0.7152*linear(c.G) + 0.0722*linear(c.B)
	}
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func TestEveryStrategyCanBeSeenOnLightAndDarkPages(t *testing.T) {
	dark := make(map[color.RGBA]color.RGBA)
	for _, s := range strategies {
		assert.GreaterOrEqual(t, contrast(s.look.light, rgb(0xffffff)), 3.0, s.name)
		assert.GreaterOrEqual(t, contrast(s.look.dark, rgb(0x0d1117)), 3.0, s.name)
		if d, ok := dark[s.look.light]; ok {
			assert.Equal(t, d, s.look.dark, "%s: the report finds the dark colour by the light one", s.name)
		}
		dark[s.look.light] = s.look.dark
	}
}

func TestNoTwoLinesOfAChartHaveOneColour(t *testing.T) {
	for _, e := range engines() {
		for _, sc := range scenarios() {
			if !e.runs(sc) {
				continue
			}
			seen := make(map[color.RGBA]string)
			for _, s := range strategies {
				if e.offers(sc, s) {
					assert.Empty(t, seen[s.look.light], "%s, %s: the colour of %s", e.name(), sc.name, s.name)
					seen[s.look.light] = s.name
				}
			}
		}
	}
}

func TestEveryStrategyHasAPlaceAndAnEngine(t *testing.T) {
	ranks, names := make(map[int]string), make(map[string]bool)
	for _, s := range strategies {
		assert.Empty(t, ranks[s.rank], "the rank of %s", s.name)
		assert.False(t, names[s.name], s.name)
		ranks[s.rank], names[s.name] = s.name, true
		assert.NotEmpty(t, s.about, s.name)
		offered := false
		for _, e := range engines() {
			for _, sc := range scenarios() {
				offered = offered || e.runs(sc) && e.offers(sc, s)
			}
		}
		assert.True(t, offered, "%s runs nowhere", s.name)
	}
}
