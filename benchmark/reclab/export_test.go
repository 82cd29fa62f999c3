package reclab

import (
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// Quantile returns how long callers waited at q in [0, 1], also those whose call failed.
func (r Row) Quantile(q float64) time.Duration {
	var all []time.Duration
	for _, c := range r.Calls {
		all = append(all, c.Latency)
	}
	slices.Sort(all)
	return latency.Quantile(all, q)
}

// Explain returns what a name needs in the internet of a scenario: the zones, their servers, and
// what is wrong with these.
func Explain(seed uint64, scenario, name string) (text string, zones []string) {
	w := newWorld(planOf(scenario, seed))
	var b strings.Builder
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		z := w.zoneOf(name)
		if h := z.hosts[name]; h != nil && h.alias != "" {
			defer visit(h.alias)
		}
		if seen[z.name] || z.name == "." {
			return
		}
		seen[z.name] = true
		zones = append(zones, z.name)
		visit(up(z.name))
		b.WriteString("  " + z.name + ":")
		for _, s := range z.servers {
			b.WriteString(" [" + s.String())
			if z.refusing == s {
				b.WriteString(" refusing")
			}
			b.WriteString("]")
		}
		b.WriteString("\n")
		for _, s := range z.servers {
			visit(s.name)
		}
	}
	visit(name)
	return b.String(), zones
}
