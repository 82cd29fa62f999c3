package worlds_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
)

// A part is a property of a scenario whose value differs from the default.
type part struct{ name, value string }

func (p part) String() string { return p.name + "=" + p.value }

// parts is the text form of a scenario.
type parts []part

func (ps parts) String() string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = p.String()
	}
	return strings.Join(words, " ")
}

// without returns the parts except part i.
func (ps parts) without(i int) parts { return slices.Delete(slices.Clone(ps), i, i+1) }

// parseParts is the inverse of String.
func parseParts(words string) (ps parts, err error) {
	for _, word := range strings.Fields(words) {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no part", word)
		}
		ps = append(ps, part{name, value})
	}
	return ps, nil
}

// A generator determines the parts of a scenario, from a given list of parts or at random from a number.
type generator struct {
	number uint64
	given  map[string]string // values by name; nil: the parts are random
	asked  map[string]bool   // names of all parts so far
	has    parts             // the parts of the scenario
}

func newGenerator(number uint64) *generator {
	return &generator{number: number, asked: make(map[string]bool)}
}

func generatorFor(ps parts) *generator {
	d := &generator{given: make(map[string]string, len(ps)), asked: make(map[string]bool)}
	for _, p := range ps {
		d.given[p.name] = p.value
	}
	return d
}

// unusedParts returns the given parts whose names or values do not exist.
func (d *generator) unusedParts(ps parts) (all parts) {
	for _, p := range ps {
		if !slices.Contains(d.has, p) {
			all = append(all, p)
		}
	}
	return all
}

// drawPart returns one of the choices with the probability odds, and else usual. Every part has its own random numbers:
// the removal of a part changes no other part.
func drawPart[T any](d *generator, name string, odds float64, usual T, choices ...T) T {
	if d.asked[name] {
		panic("two parts have the name " + name)
	}
	d.asked[name] = true
	if d.given != nil {
		value, ok := d.given[name]
		if !ok {
			return usual
		}
		for _, c := range choices {
			if formatValue(c) == value {
				d.has = append(d.has, part{name, value})
				return c
			}
		}
		return usual
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(d.number, h.Sum64()))
	if r.Float64() >= odds {
		return usual
	}
	c := choices[r.IntN(len(choices))]
	d.has = append(d.has, part{name, formatValue(c)})
	return c
}

// drawFlag reports whether the scenario has a part without a value.
func drawFlag(d *generator, name string, odds float64) bool {
	return drawPart(d, name, odds, false, true)
}

// formatValue returns the text of a value in a part.
func formatValue(v any) string { return strings.ReplaceAll(fmt.Sprint(v), " ", "_") }
