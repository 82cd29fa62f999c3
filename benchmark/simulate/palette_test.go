package main

import (
	"io"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPeersHaveColoursAndVariantsHaveDashes(t *testing.T) {
	styles := newLineStyles([]string{"none", "hedgedhttp-10ms", "hedgedhttp-50ms", "bhope", "bhope-tuned", "hedge", "hedge-1", "static-best-1", "static-best-2"})
	colour := func(name string) themedColour { return styles.findStyle(name).colour }
	dashes := func(name string) string { return styles.findStyle(name).dashes }
	assert.Equal(t, oursColour, colour("hedge"))
	assert.Equal(t, oursColour, colour("hedge-1"))
	assert.Equal(t, baselineColour, colour("none"))
	assert.Equal(t, titleColour, colour("static-best-2"))
	assert.Equal(t, colour("hedgedhttp-10ms"), colour("hedgedhttp-50ms"))
	assert.NotEqual(t, colour("hedgedhttp-10ms"), colour("bhope"))
	for _, solid := range []string{"none", "hedgedhttp-10ms", "bhope", "hedge"} {
		assert.Equal(t, "none", dashes(solid), solid)
	}
	for _, dashed := range []string{"hedgedhttp-50ms", "bhope-tuned", "hedge-1", "static-best-1", "static-best-2"} {
		assert.NotEqual(t, "none", dashes(dashed), dashed)
	}
	assert.NotEqual(t, dashes("static-best-1"), dashes("static-best-2"))
	assert.Greater(t, styles.findStyle("hedge").width, styles.findStyle("none").width)
}

func TestLinesOfAScenarioLookDifferent(t *testing.T) {
	for _, name := range engineNames() {
		o, err := parseOptions([]string{"-engine", name, "-scenario", "all"}, io.Discard)
		require.NoError(t, err)
		for _, sc := range o.scenarios {
			seen := make(map[[2]string]string)
			for _, s := range newLineStyles(o.selectStrategies(sc)) {
				look := [2]string{s.colour.light, s.dashes}
				assert.Empty(t, seen[look], "%s %s: the line of %s looks the same", name, sc.name, s.strategy)
				seen[look] = s.strategy
			}
		}
	}
}

func TestStyleSheetHasColoursForLightAndDarkPages(t *testing.T) {
	sheet := newStyleSheet(newLineStyles([]string{"none", "hedge"}))
	assert.Contains(t, sheet, "prefers-color-scheme:dark")
	for _, c := range []themedColour{oursColour, baselineColour, backgroundColour} {
		assert.Contains(t, sheet, c.light)
		assert.Contains(t, sheet, c.dark)
	}
}

// Labels have the colours of their lines. Text needs a contrast of 4.5 (WCAG 2.2, 1.4.3).
func TestLineColoursAreReadableAsText(t *testing.T) {
	for _, c := range lineColours() {
		assert.GreaterOrEqual(t, contrastRatio(t, c.light, backgroundColour.light), 4.5, c.light)
		assert.GreaterOrEqual(t, contrastRatio(t, c.dark, backgroundColour.dark), 4.5, c.dark)
	}
}

// The distances are in OKLab, for colours as people with normal vision see them, and people without red, green or blue cones.
func TestColourBlindReadersCanTellLinesApart(t *testing.T) {
	const minDistance = 0.09
	for vision, matrix := range visions {
		for i, a := range lineColours() {
			for _, b := range lineColours()[:i] {
				light := colourDistance(matrix.simulate(linearRGB(t, a.light)), matrix.simulate(linearRGB(t, b.light)))
				assert.GreaterOrEqual(t, light, minDistance, "%s: %s and %s", vision, a.light, b.light)
				dark := colourDistance(matrix.simulate(linearRGB(t, a.dark)), matrix.simulate(linearRGB(t, b.dark)))
				assert.GreaterOrEqual(t, dark, minDistance, "%s: %s and %s", vision, a.dark, b.dark)
			}
		}
	}
}

func lineColours() []themedColour {
	return append([]themedColour{oursColour, baselineColour, titleColour}, peerColours...)
}

type matrix [3][3]float64

// visions are matrices of linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
var visions = map[string]matrix{
	"normal":       {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func (m matrix) multiply(v [3]float64) (product [3]float64) {
	for i, row := range m {
		product[i] = row[0]*v[0] + row[1]*v[1] + row[2]*v[2]
	}
	return product
}

// simulate returns a colour as a person with this colour vision sees it.
func (m matrix) simulate(rgb [3]float64) [3]float64 {
	seen := m.multiply(rgb)
	for i, x := range seen {
		seen[i] = min(max(x, 0), 1)
	}
	return seen
}

// linearRGB returns the linear components of a colour of sRGB, such as #1d4ed8.
func linearRGB(t *testing.T, colour string) (rgb [3]float64) {
	t.Helper()
	for i := range rgb {
		n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		require.NoError(t, err)
		if c := float64(n) / 255; c <= 0.04045 {
			rgb[i] = c / 12.92
		} else {
			rgb[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return rgb
}

func contrastRatio(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(colour string) float64 {
		rgb := linearRGB(t, colour)
		return 0.2126*rgb[0] + 0.7152*rgb[1] + 0.0722*rgb[2]
	}
	x, y := luminance(a)+0.05, luminance(b)+0.05
	return max(x, y) / min(x, y)
}

// colourDistance returns the distance of two colours in OKLab (Ottosson, 2020).
func colourDistance(a, b [3]float64) float64 {
	lab := func(rgb [3]float64) [3]float64 {
		lms := matrix{{0.4122214708, 0.5363325363, 0.0514459929}, {0.2119034982, 0.6806995451, 0.1073969566}, {0.0883024619, 0.2817188376, 0.6299787005}}.multiply(rgb)
		for i, x := range lms {
			lms[i] = math.Cbrt(x)
		}
		return matrix{{0.2104542553, 0.7936177850, -0.0040720468}, {1.9779984951, -2.4285922050, 0.4505937099}, {0.0259040371, 0.7827717662, -0.8086757660}}.multiply(lms)
	}
	x, y := lab(a), lab(b)
	return math.Hypot(x[0]-y[0], math.Hypot(x[1]-y[1], x[2]-y[2]))
}
