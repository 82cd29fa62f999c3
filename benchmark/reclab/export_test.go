package reclab

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// Quantile returns quantile q of the latencies of all questions, with q from 0 to 1.
func (r Row) Quantile(q float64) time.Duration {
	var all []time.Duration
	for _, c := range r.Questions {
		all = append(all, c.Latency)
	}
	slices.Sort(all)
	return latency.Quantile(all, q)
}

// DescribeName returns the zones that the resolution of a name needs in the internet of a scenario, with their servers
// and faults.
func DescribeName(seed uint64, scenario, name string) (text string, zones []string) {
	n := newInternet(newInternetPlan(scenario, seed))
	var b strings.Builder
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		z := n.findZone(name)
		if h := z.hosts[name]; h != nil && h.alias != "" {
			defer visit(h.alias)
		}
		if seen[z.name] || z.name == "." {
			return
		}
		seen[z.name] = true
		zones = append(zones, z.name)
		visit(parentName(z.name))
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

// String returns the name, the address, the round-trip time and the faults of the server.
func (s *server) String() string {
	faults := []string{"", " dead", " failing", " without EDNS"}[s.fault]
	if s.stale {
		faults += " stale"
	}
	return fmt.Sprintf("%s %v %v%s", strings.TrimSuffix(s.name, "."), s.addr, s.rtt.Round(time.Millisecond), faults)
}
