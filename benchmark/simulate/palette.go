package main

import (
	"fmt"
	"slices"
	"strings"
)

// A themedColour is a CSS colour for light pages and one for dark pages.
type themedColour struct{ light, dark string }

// The colours of a drawing besides those of its lines.
var (
	backgroundColour = themedColour{"#ffffff", "#0d1117"}
	titleColour      = themedColour{"#1f2328", "#f0f6fc"}
	textColour       = themedColour{"#57606a", "#9198a1"}
	gridColour       = themedColour{"#d1d9e0", "#3d444d"}
)

// The colours of lines. Colour-blind readers can tell them apart, and they are readable as text.
var (
	oursColour     = themedColour{"#1130a6", "#7aa7ff"}
	baselineColour = themedColour{"#585459", "#bfc3c9"}

	// Peers get these in the order of the tables.
	peerColours = []themedColour{
		{"#b45509", "#e0661c"}, // orange
		{"#1f8282", "#3f9a8c"}, // green
		{"#9e2ae8", "#b94ff5"}, // purple
		{"#5e3200", "#f0b429"}, // brown, yellow
	}
)

// dashPatterns distinguish lines of one colour, as values of stroke-dasharray.
var dashPatterns = []string{"none", "8 4", "2 4", "10 3 2 3"}

// A lineStyle is the appearance of a strategy's line and label in charts.
type lineStyle struct {
	strategy string
	class    string // of the elements
	colour   themedColour
	dashes   string // one of dashPatterns
	width    float64
}

type lineStyles []lineStyle

func (s lineStyles) findStyle(strategy string) lineStyle {
	return s[slices.IndexFunc(s, func(style lineStyle) bool { return style.strategy == strategy })]
}

// newLineStyles returns a style for each of the named strategies: a colour for each library, and a dash pattern for
// each variant of a library. This library is blue, and no hedging is grey. The best static delays, which no client can
// know, are dashed in the colour of titles.
func newLineStyles(strategies []string) lineStyles {
	var styles lineStyles
	colours := map[string]themedColour{libraryName(libraryStrategy): oursColour, baselineStrategy: baselineColour, "single": baselineColour, bestStaticLibrary: titleColour}
	lines := map[themedColour]int{titleColour: 1} // lines of each colour; none is solid in the colour of titles
	unused := 0
	for i, name := range strategies {
		peer := libraryName(name)
		if _, ok := colours[peer]; !ok {
			colours[peer] = peerColours[unused%len(peerColours)]
			unused++
		}
		style := lineStyle{strategy: name, class: fmt.Sprint("s", i), colour: colours[peer], width: 2.2}
		if name == libraryStrategy {
			style.width = 4
		}
		style.dashes = dashPatterns[lines[style.colour]%len(dashPatterns)]
		lines[style.colour]++
		styles = append(styles, style)
	}
	return styles
}

// bestStaticLibrary stands for the library in names of strategies with the best static delays, which use no library.
const bestStaticLibrary = "best static"

// libraryName returns the library or program of a strategy, its name up to the first hyphen. For the best static
// delays, which no library computes, it returns bestStaticLibrary.
func libraryName(strategy string) string {
	if findStrategy(strategy).hasBestStaticDelays() {
		return bestStaticLibrary
	}
	peer, _, _ := strings.Cut(strategy, "-")
	return peer
}

// newStyleSheet returns the CSS of charts whose lines have the given styles, for light and for dark pages.
func newStyleSheet(styles lineStyles) string {
	var b strings.Builder
	b.WriteString("text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}" +
		".title{font-size:20px;font-weight:650}.label,.value{font-size:14px;font-weight:650}" +
		".tick{font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke-width:.7}" +
		".line{fill:none;stroke-linejoin:round}.dot{stroke-width:2}")
	for _, s := range styles {
		fmt.Fprintf(&b, "path.%s{stroke-width:%g;stroke-dasharray:%s}", s.class, s.width, s.dashes)
	}
	b.WriteString("path.leader{fill:none;stroke-width:1.2}")
	writeColours := func(themed func(themedColour) string) {
		fmt.Fprintf(&b, "text{fill:%s}.title{fill:%s}.card{fill:%s;stroke:%s}.grid{stroke:%[4]s}.dot{stroke:%[3]s}",
			themed(textColour), themed(titleColour), themed(backgroundColour), themed(gridColour))
		for _, s := range styles {
			fmt.Fprintf(&b, "path.%s{stroke:%s}text.%[1]s,circle.%[1]s{fill:%[2]s}", s.class, themed(s.colour))
		}
	}
	writeColours(func(c themedColour) string { return c.light })
	b.WriteString("@media(prefers-color-scheme:dark){")
	writeColours(func(c themedColour) string { return c.dark })
	b.WriteString("}")
	return b.String()
}
