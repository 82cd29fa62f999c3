package worlds_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
)

// A part is something that a world has beside the usual.
type part struct{ name, value string }

func (p part) String() string { return p.name + "=" + p.value }

// parts is a world in words.
type parts []part

func (ps parts) String() string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = p.String()
	}
	return strings.Join(words, " ")
}

// without returns the parts but one.
func (ps parts) without(i int) parts { return slices.Delete(slices.Clone(ps), i, i+1) }

// parse is the inverse of String.
func parse(words string) (ps parts, err error) {
	for _, word := range strings.Fields(words) {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no part", word)
		}
		ps = append(ps, part{name, value})
	}
	return ps, nil
}

// A draw decides which parts a world has: those that are given, or what its number says.
type draw struct {
	number uint64
	given  map[string]string // nil: the number decides
	asked  map[string]bool   // names of parts
	has    parts             // those that are there
}

func drawn(number uint64) *draw { return &draw{number: number, asked: make(map[string]bool)} }

func given(ps parts) *draw {
	d := &draw{given: make(map[string]string, len(ps)), asked: make(map[string]bool)}
	for _, p := range ps {
		d.given[p.name] = p.value
	}
	return d
}

// unknown returns the parts that are given and that nobody asked about, or that have a value that nobody knows.
func (d *draw) unknown(ps parts) (all parts) {
	for _, p := range ps {
		if !slices.Contains(d.has, p) {
			all = append(all, p)
		}
	}
	return all
}

// pick returns one of the choices with the given odds, and otherwise the usual. Every part has random numbers of its own, so
// that one that is left out changes no other.
func pick[T any](d *draw, name string, odds float64, usual T, choices ...T) T {
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
			if word(c) == value {
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
	d.has = append(d.has, part{name, word(c)})
	return c
}

// has reports whether a part without a value is there.
func has(d *draw, name string, odds float64) bool { return pick(d, name, odds, false, true) }

// word is a value as it is written in a part.
func word(v any) string { return strings.ReplaceAll(fmt.Sprint(v), " ", "_") }
