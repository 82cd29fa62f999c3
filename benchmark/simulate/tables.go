package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/benchmark/endpointlab"
)

// A documentTable is a table that documents have between the comments <!-- table:NAME --> and <!-- /table -->. Its figures are
// findings of this command, or output of benchmarks.
type documentTable struct {
	name    string
	args    string // of this command; tables with the same arguments share one run
	typed   string // the command that the table cites; empty: this one with args
	basis   string // replaces the explanation of ± in tables without it
	render  func(findings) string
	picture string // file of the picture that is drawn from the same run, relative to the document; empty: none

	benchmark   string // arguments of go test, which runs several times
	renderCosts func(benchmarkResults) string
}

// referenceArgs are the arguments of the run that README's table and picture show, and the table beside the peers.
const referenceArgs = "-engine http -requests 30000 -runs 3 -strategy none,static-10ms,failsafe-quantile,bhope,bhope-tuned,hedge,static-best-2"

var documentTables = []documentTable{{
	name: "headline", render: formatHeadline, picture: "docs/tail.svg",
	args: referenceArgs, typed: "make readme",
}, {
	name: "reference", render: formatWholes,
	args: referenceArgs,
}, {
	name: "dns", render: formatNetworks,
	args: "-engine dns -scenario loss2,spikes,clean -runs 5 -strategy single,hedge,net-resolver",
}, {
	name: "faults", render: formatFaults, basis: "one run",
	args: "-engine faults -scenario all",
}, {
	name: "recursor", render: formatResolvers,
	args: "-engine recursor -scenario broken,clean",
}, {
	name: "signed", render: formatResolvers,
	args: "-engine recursor -scenario mixed,signed -strategy hedge,hedge-novalidate,unbound-validate,named-validate -requests 1000 -runs 3",
}, {
	name: "storage", render: formatRanges, basis: "one run, in fake time",
	args: "-engine storage -scenario all",
}, {
	name: "endpoints", render: formatEndpoints, basis: "one run, in fake time",
	args: "-engine endpoints -scenario all",
}, {
	name: "cost", renderCosts: formatCosts,
	benchmark: "-run ^$ -bench ^BenchmarkNoHedge$ ./benchmark",
}}

func documentTableNames() []string {
	var names []string
	for _, t := range documentTables {
		names = append(names, t.name)
	}
	return names
}

func findDocumentTable(name string) documentTable {
	return documentTables[slices.Index(documentTableNames(), name)]
}

// formatHeadline returns README's table, and a sentence that compares its rows.
func formatHeadline(f findings) string {
	s := f.scenarios[0]
	var b strings.Builder
	b.WriteString("| the published benchmark of bhope/hedge | p50 ms | p99 ms | p99.9 ms | extra requests | connections |\n|---|--:|--:|--:|--:|--:|\n")
	names := make(map[string]string)
	for _, h := range headlineStrategies() {
		r := s.find(h.name).rows[0]
		names[h.name] = h.title
		name, connections := h.title, "–"
		if h.name == ours {
			name = "**" + name + "**"
		}
		if r.Conns != nil {
			connections = thousands(*r.Conns)
		}
		fmt.Fprintf(&b, "| %s | %s | %s%s | %s%s | %s | %s |\n", name, formatMillis(r.P50), formatMillis(r.P99), formatSpread(r.spread.p99),
			formatMillis(r.P999), formatSpread(r.spread.p999), formatPercent(r.Extra), connections)
	}
	b.WriteString("\n" + s.compare(names) + "\n")
	return b.String()
}

// formatWholes returns the table of the first scenario without its parts.
func formatWholes(f findings) string {
	rows := slices.DeleteFunc(f.scenarios[0].tableRows(), func(r row) bool { return strings.Contains(r.Scenario, "/") })
	return formatMarkdownTable(rows, f.options.engine.profile())
}

// formatNetworks returns a row for each strategy in each scenario.
func formatNetworks(f findings) string {
	return f.formatRows([]string{"p50", "p99", "mean", "σ", "failed", "extra queries"}, func(r row) []any {
		return []any{formatMillis(r.P50) + formatSpread(r.spread.p50), formatMillis(r.P99) + formatSpread(r.spread.p99), formatMillis(r.Mean) + formatSpread(r.spread.mean),
			formatMillis(r.Stddev) + formatSpread(r.spread.stddev), r.Errors, fmt.Sprintf("%.1f %%", r.Extra)}
	})
}

// formatResolvers returns a row for each resolver in each scenario.
func formatResolvers(f findings) string {
	return f.formatRows([]string{"p50", "p95", "p99", "p99.9", "failed", "queries per name", "CPU µs"}, func(r row) []any {
		cpu := "–"
		if r.CPU != nil {
			cpu = fmt.Sprintf("%.0f", *r.CPU)
		}
		return []any{formatMillis(r.P50), formatMillis(r.P95), formatMillis(r.P99) + formatSpread(r.spread.p99), formatMillis(r.P999) + formatSpread(r.spread.p999),
			r.Errors, fmt.Sprintf("%.2f", *r.Sent), cpu}
	})
}

// formatFaults returns a row for each resolver in each scenario.
func formatFaults(f findings) string {
	return f.formatRows([]string{"answered", "p50", "p99", "last answer", "queries per question"}, func(r row) []any {
		answered := fmt.Sprintf("%d of %d", r.Requests-r.Errors, r.Requests)
		if *r.own["denials"] > 0 {
			answered += fmt.Sprintf(", %.0f denied", *r.own["denials"])
		}
		return []any{answered, formatMillis(r.P50), formatMillis(r.P99), fmt.Sprintf("%.2f s", *r.own["last_answer_ms"]/1000), fmt.Sprintf("%.2f", *r.Sent)}
	})
}

// formatRanges returns a row for each reader in each scenario of the store.
func formatRanges(f findings) string {
	percent := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	return f.formatRows([]string{"p50", "p90", "p99", "p99.9", "extra requests %", "bytes asked twice %", "bytes sent twice %", "wins %"}, func(r row) []any {
		return []any{formatMillis(r.P50), formatMillis(r.P90), formatMillis(r.P99), formatMillis(r.P999),
			percent(r.Extra), percent(*r.own["asked_twice_pct"]), percent(*r.own["sent_twice_pct"]), percent(100 * float64(r.Wins) / float64(max(r.Requests, 1)))}
	})
}

// formatEndpoints returns a row for each scenario: the 99th percentiles of all strategies, and the costs of WithEndpoints.
func formatEndpoints(f findings) string {
	var b strings.Builder
	b.WriteString("| p99 in ms |")
	for _, name := range inOrder(endpointlab.Contenders) {
		b.WriteString(" " + name + " |")
	}
	fmt.Fprintf(&b, " extra requests %% | tokens %% | errors |\n|---|%s\n", strings.Repeat("--:|", len(endpointlab.Contenders)+3))
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "| %s |", s.scenario.name)
		var extra, tokens, failures []string
		for _, r := range s.rows() {
			fmt.Fprintf(&b, " %s |", formatMillis(r.P99))
			if strings.HasPrefix(r.Strategy, steered) {
				extra, tokens = append(extra, fmt.Sprintf("%.1f", r.Extra)), append(tokens, fmt.Sprintf("%.1f", *r.own["tokens_pct"]))
				failures = append(failures, strconv.Itoa(r.Errors))
			}
		}
		for _, both := range [][]string{extra, tokens, failures} {
			fmt.Fprintf(&b, " %s |", strings.Join(both, ", "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// formatRows returns a table of all strategies, grouped by scenario and without parts.
func (f findings) formatRows(titles []string, cells func(row) []any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| ms | | %s |\n|---|---%s|\n", strings.Join(titles, " | "), strings.Repeat("|--:", len(titles)))
	for _, s := range f.scenarios {
		about := s.scenario.name
		if text, ok := strings.CutPrefix(s.scenario.about, "DNS: "); ok {
			about = text
		}
		for _, res := range s.results {
			name := res.strategy
			if name == ours {
				name = "**" + name + "**"
			}
			fmt.Fprintf(&b, "| %s | %s |", about, name)
			for _, c := range cells(res.rows[0]) {
				fmt.Fprintf(&b, " %v |", c)
			}
			b.WriteByte('\n')
			about = ""
		}
	}
	return b.String()
}
