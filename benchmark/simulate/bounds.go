package main

import "fmt"

// A bound is a requirement that a figure of a strategy in a scenario must meet: a largest value. It is a multiple of
// another strategy's figure, or a number if no other strategy is named.
type bound struct {
	scenario, figure, other string
	most                    float64
	of                      func(row) float64
}

// formatVerdict returns the text for a requirement that is met or not met.
func formatVerdict(met bool) string {
	if met {
		return "met"
	}
	return "NOT MET"
}

// compareWithBounds returns a report line for each bound that applies to the scenario or to one of its parts. The line
// compares the figure of a strategy, named of, with the bound.
func (f scenarioResults) compareWithBounds(of string, bounds []bound) (lines []string) {
	rows := make(map[[2]string]row)
	for _, r := range f.rows() {
		rows[[2]string{r.Scenario, r.Strategy}] = r
	}
	for _, b := range bounds {
		us, ran := rows[[2]string{b.scenario, of}]
		if !ran {
			continue
		}
		if is := b.of(us); b.other == "" && is > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s is %.0f, at most %.0f: %s.", b.scenario, b.figure, is, b.most, formatVerdict(is <= b.most)))
			continue
		}
		other, ok := rows[[2]string{b.scenario, b.other}]
		if !ok || b.of(other) == 0 {
			lines = append(lines, fmt.Sprintf("%s: %s is not compared: %s has none.", b.scenario, b.figure, b.other))
			continue
		}
		is := b.of(us) / b.of(other)
		lines = append(lines, fmt.Sprintf("%s: %s is %.2f × %s's, at most %.2f ×: %s.", b.scenario, b.figure, is, b.other, b.most, formatVerdict(is <= b.most)))
	}
	return lines
}
