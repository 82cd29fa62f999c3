package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contrast returns how much two colours differ in luminance, from 1 to 21: WCAG 2.2's definition.
func contrast(a, b string) float64 {
	luminance := func(colour string) float64 {
		var r, g, b uint8
		_, _ = fmt.Sscanf(colour, "#%02x%02x%02x", &r, &g, &b)
		linear := func(v uint8) float64 {
			x := float64(v) / 255
			if x <= 0.04045 {
				return x / 12.92
			}
			return math.Pow((x+0.055)/1.055, 2.4)
		}
		return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b)
	}
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func TestEveryStrategyCanBeSeenOnLightAndDarkPages(t *testing.T) {
	for _, s := range strategies {
		assert.GreaterOrEqual(t, contrast(s.look.light, paper.light), 3.0, s.name)
		assert.GreaterOrEqual(t, contrast(s.look.dark, paper.dark), 3.0, s.name)
	}
}

func TestNoTwoLinesOfAChartHaveOneColour(t *testing.T) {
	for _, e := range engines() {
		for _, sc := range e.profile().scenarios {
			seen := make(map[string]string)
			for _, s := range strategies {
				if e.offers(sc, s) {
					assert.Empty(t, seen[s.look.light], "%s, %s: the colour of %s", e.profile().name, sc.name, s.name)
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
			for _, sc := range e.profile().scenarios {
				offered = offered || e.offers(sc, s)
			}
		}
		assert.True(t, offered, "%s runs nowhere", s.name)
	}
}

func TestFewLinesStandOut(t *testing.T) {
	for _, e := range engines() {
		for _, sc := range e.profile().scenarios {
			f := finding{scenario: sc}
			for _, name := range (options{engine: e}).contenders(sc) {
				f.results = append(f.results, result{strategy: name})
			}
			var out []string
			for _, r := range f.results {
				if f.standsOut(r.strategy) {
					out = append(out, r.strategy)
				}
			}
			assert.LessOrEqual(t, len(out), manyLines, "%s %s", e.profile().name, sc.name)
			assert.True(t, slices.ContainsFunc(out, func(s string) bool { return strings.HasPrefix(s, ours) }), "%s %s: %v", e.profile().name, sc.name, out)
		}
	}
}

func TestReportHasALightAndADarkColourForEachClassOfItsCharts(t *testing.T) {
	dir := t.TempDir()
	_, stderr, code := sim(t, "-engine", "virtual", "-requests", "5000", "-out", dir)
	require.Equal(t, ok, code, stderr)
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	light, rest, found := strings.Cut(string(page), "@media(prefers-color-scheme:dark)")
	require.True(t, found)
	dark, drawn, found := strings.Cut(rest, "</style>")
	require.True(t, found)
	used := regexp.MustCompile(`class="[^"]*\b([lf]-[^" ]+|faint|grid|card|title)"`).FindAllStringSubmatch(drawn, -1)
	require.Greater(t, len(used), 50)
	for _, m := range used {
		colour := regexp.MustCompile(`\.` + m[1] + `(,\.d-[^{]+)?\{(fill|stroke):#[0-9a-f]{6}`)
		assert.True(t, colour.MatchString(light), m[1])
		assert.True(t, colour.MatchString(dark), m[1])
	}
	for _, chart := range strings.Split(drawn, "<svg")[1:] {
		chart, _, _ = strings.Cut(chart, "</svg>")
		assert.NotContains(t, chart, "#", "a chart has no colour of its own")
		assert.NotContains(t, chart, "<style>")
	}
}
