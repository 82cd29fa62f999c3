package main

import (
	"fmt"
	"slices"
	"strings"
)

// A documentTable is a table of measurements in the documentation, which the flag -readme replaces by new measurements.
// In the document, it stands between the comments <!-- table:NAME --> and <!-- /table -->. The figures come from a run
// of simulate or from Go benchmarks.
type documentTable struct {
	name         string
	args         string // of this command; tables with the same arguments share one run
	citedCommand string // the command below the table; empty: this command with args
	basis        string // explanation of the figures; empty: the explanation of ±
	render       func(engineResults) string
	picture      string // file of the picture that is drawn from the same run, relative to the document; empty: none

	benchmark   string // arguments of go test, which runs several times
	renderCosts func(benchmarkResults) string
}

// referenceArgs are the arguments of the run that README's table and picture show, and the table beside the peers.
const referenceArgs = "-engine http -requests 30000 -runs 3 -strategy none,hedgedhttp-10ms,failsafe-quantile,bhope,bhope-tuned,hedge,static-best-2"

var documentTables = []documentTable{{
	name: "headline", render: formatHeadline, picture: "docs/tail.svg",
	args: referenceArgs, citedCommand: "make readme",
}, {
	name: "reference", render: formatFirstScenarioTable,
	args: referenceArgs,
}, {
	name: "dns", render: columnsOf("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -requests 2500 -runs 2 -strategy hedge,forwarder,unbound,named,pdns,kresd,sdns,hickory",
}, {
	name: "dns-tls", render: columnsOf("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -transport tls -requests 2500 -runs 2 -strategy forwarder,unbound,named,pdns,kresd,dnsdist",
}, {
	name: "dns-https", render: columnsOf("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -transport https -requests 2500 -runs 2 -strategy forwarder,dnsdist",
}, {
	name: "cached", render: formatCaches, basis: "medians of 3 runs",
	args: "-engine cached -scenario all -strategy forwarder,unbound,named,pdns,kresd,dnsdist,sdns,hickory",
}, {
	name: "clients", render: formatManyClients, basis: "one run",
	args: "-engine cached -scenario udp,long -strategy forwarder,unbound -runs 1",
}, {
	name: "faults", render: columnsOf("answered", "p50", "p99", "last answer", "queries per question"), basis: "one run",
	args: "-engine faults -scenario all",
}, {
	name: "recursor", render: columnsOf("p50", "p99 ±", "σ", "failed", "queries per name"),
	args: "-engine recursor -scenario broken -requests 2000 -strategy hedge,unbound,named,pdns,kresd,sdns,hickory",
}, {
	name: "signed", render: columnsOf("p50", "p95", "p99 ±", "p99.9 ±", "failed", "queries per name", "CPU µs"),
	args: "-engine recursor -scenario mixed,signed -strategy hedge,hedge-novalidate,unbound-validate,named-validate -requests 1000 -runs 3",
}, {
	name: "storage", render: columnsOf("p50", "p99", "p99.9", "extra requests %", "bytes sent twice %", "wins %"), basis: "one run, in fake time",
	args: "-engine storage -scenario storage",
}, {
	name: "endpoints", render: formatEndpoints, basis: "one run, in fake time",
	args: "-engine endpoints -scenario all -strategy none,hedge,far,failover,hedge-endpoints",
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

// formatHeadline returns the table in README that compares hedging libraries, and a sentence that compares its rows.
func formatHeadline(f engineResults) string {
	s := f.scenarios[0]
	var b strings.Builder
	b.WriteString("| the published benchmark of bhope/hedge | p50 ms | p99 ms | p99.9 ms | extra requests | connections |\n|---|--:|--:|--:|--:|--:|\n")
	names := make(map[string]string)
	for _, h := range headlineStrategies() {
		names[h.name] = h.title
		name := h.title
		if h.name == libraryStrategy {
			name = "**" + name + "**"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(headlineCells(s.findResult(h.name).rows[0]), " | "))
	}
	b.WriteString("\n" + s.compareWithPeers(names) + "\n")
	return b.String()
}

// headlineCells returns the cells of row r in README's table and in the overview: p50, p99, p99.9, the extra requests,
// and the number of connections.
func headlineCells(r row) []string {
	connections := "–"
	if r.Conns != nil {
		connections = formatThousands(*r.Conns)
	}
	return []string{
		formatMillis(r.P50), formatMillis(r.P99) + formatErrorMargin(r.errorMargins.p99), formatMillis(r.P999) + formatErrorMargin(r.errorMargins.p999), formatPercent(r.Extra), connections,
	}
}

// formatFirstScenarioTable returns the Markdown table of the first scenario, with a row per strategy for the whole run, and
// none for the phases of the run.
func formatFirstScenarioTable(f engineResults) string {
	rows := slices.DeleteFunc(f.scenarios[0].tableRows(), func(r row) bool { return strings.Contains(r.Scenario, "/") })
	return formatMarkdownTable(rows, f.options.engine.spec())
}

// formatCaches returns the Markdown table of DNS servers that answer from their caches: a row for each server. Its
// cells are the processor time of a query in each scenario, and the memory of a connection.
func formatCaches(f engineResults) string {
	var b strings.Builder
	b.WriteString("| CPU µs |")
	var names []string
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, " %s |", strings.TrimPrefix(s.scenario.description, "DNS: "))
		names = append(names, s.strategies()...)
	}
	fmt.Fprintf(&b, " kB per connection |\n|---%s|\n", strings.Repeat("|--:", len(f.scenarios)+1))
	for _, name := range sortStrategyNames(names) {
		fmt.Fprintf(&b, "| %s |", formatStrategyName(name))
		memory := "–"
		for _, s := range f.scenarios {
			cell := "–"
			for _, r := range s.findResult(name).rows {
				cell = fmt.Sprintf("%.1f", *r.CPU)
				if each := r.engineFigures["kb_per_connection"]; each != nil {
					memory = fmt.Sprintf("%.1f", *each)
				}
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		fmt.Fprintf(&b, " %s |\n", memory)
	}
	return b.String()
}

// formatManyClients returns the Markdown table of DNS servers with many connections: a row for each scenario, with four
// cells for each server. The rates are compared with those of the first scenario, which uses UDP.
func formatManyClients(f engineResults) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, udp := range f.scenarios[0].results {
		fmt.Fprintf(&b, " %s: queries/s | of UDP's | CPU µs | kB; with kernel |", formatStrategyName(udp.strategy))
	}
	fmt.Fprintf(&b, "\n|---%s|\n", strings.Repeat("|--:", 4*len(f.scenarios[0].results)))
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "| %s |", strings.TrimSuffix(strings.TrimPrefix(s.scenario.description, "DNS: over "), " connections"))
		for _, udp := range f.scenarios[0].results {
			rows := s.findResult(udp.strategy).rows
			if len(rows) == 0 || rows[0].Errors > rows[0].Requests/100 {
				b.WriteString(strings.Repeat(" – |", 4))
				continue
			}
			r := rows[0]
			rate, memory := *r.engineFigures["queries_per_second"], "–"
			if kB, kernel := r.engineFigures["kb_per_connection"], r.engineFigures["kernel_kb_per_connection"]; kB != nil && kernel != nil {
				memory = fmt.Sprintf("%.1f; %.1f", *kB, *kB+*kernel)
			}
			fmt.Fprintf(&b, " %.0f | %.2f | %.1f | %s |", rate, rate / *udp.rows[0].engineFigures["queries_per_second"], *r.CPU, memory)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// formatStrategyName returns the name of a strategy for a Markdown table, in bold if it is this library.
func formatStrategyName(name string) string {
	if name == libraryStrategy || name == "forwarder" {
		return "**" + name + "**"
	}
	return name
}

// formatEndpoints returns the Markdown table of clients with several endpoints: a row for each scenario. Its cells are
// the 99th percentiles of the strategies, and the costs of hedge.WithEndpoints.
func formatEndpoints(f engineResults) string {
	var b strings.Builder
	b.WriteString("| p99 in ms |")
	strategies := f.scenarios[0].rows()
	for _, r := range strategies {
		b.WriteString(" " + r.Strategy + " |")
	}
	fmt.Fprintf(&b, " extra requests %% | errors |\n|---|%s\n", strings.Repeat("--:|", len(strategies)+2))
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "| %s |", s.scenario.name)
		for _, r := range s.rows() {
			fmt.Fprintf(&b, " %s |", formatMillis(r.P99))
		}
		with := s.findResult(endpointsStrategy).rows[0]
		fmt.Fprintf(&b, " %.1f | %d |\n", with.Extra, with.Errors)
	}
	return b.String()
}

// documentColumns are the columns of tables with a row for each strategy, by their titles. The functions return cells. The title of
// a column with error margins ends with ±, which the table leaves out.
var documentColumns = map[string]func(row) string{
	"mean":                 func(r row) string { return formatMillis(r.Mean) },
	"p50":                  func(r row) string { return formatMillis(r.P50) },
	"p95":                  func(r row) string { return formatMillis(r.P95) },
	"p99":                  func(r row) string { return formatMillis(r.P99) },
	"p99 ±":                func(r row) string { return formatMillis(r.P99) + formatErrorMargin(r.errorMargins.p99) },
	"p99.9":                func(r row) string { return formatMillis(r.P999) },
	"p99.9 ±":              func(r row) string { return formatMillis(r.P999) + formatErrorMargin(r.errorMargins.p999) },
	"σ":                    func(r row) string { return formatMillis(r.Stddev) },
	"failed":               func(r row) string { return fmt.Sprint(r.Errors) },
	"extra queries":        func(r row) string { return formatPercent(r.Extra) },
	"extra requests %":     func(r row) string { return fmt.Sprintf("%.2f", r.Extra) },
	"bytes sent twice %":   func(r row) string { return fmt.Sprintf("%.2f", *r.engineFigures[sentTwice]) },
	"wins %":               func(r row) string { return fmt.Sprintf("%.2f", 100*float64(r.Wins)/float64(max(r.Requests, 1))) },
	"last answer":          func(r row) string { return fmt.Sprintf("%.2f s", *r.engineFigures["last_answer_ms"]/1000) },
	"queries per name":     func(r row) string { return fmt.Sprintf("%.2f", *r.Sent) },
	"queries per question": func(r row) string { return fmt.Sprintf("%.2f", *r.Sent) },
	"CPU µs": func(r row) string {
		if r.CPU == nil {
			return "–"
		}
		return fmt.Sprintf("%.0f", *r.CPU)
	},
	"answered": func(r row) string {
		text := fmt.Sprintf("%d of %d", r.Requests-r.Errors, r.Requests)
		if denials := *r.engineFigures["denials"]; denials > 0 {
			text += fmt.Sprintf(", %.0f denied", denials)
		}
		return text
	},
}

// columnsOf returns a function for documentTable.render: a Markdown table with a row for each strategy in each
// scenario. titles are keys of documentColumns.
func columnsOf(titles ...string) func(engineResults) string {
	return func(f engineResults) string {
		var b strings.Builder
		fmt.Fprintf(&b, "| ms | | %s |\n|---|---%s|\n", strings.ReplaceAll(strings.Join(titles, " | "), " ±", ""), strings.Repeat("|--:", len(titles)))
		for _, s := range f.scenarios {
			about := s.scenario.name
			if text, ok := strings.CutPrefix(s.scenario.description, "DNS: "); ok {
				about = text
			}
			for _, res := range s.results {
				fmt.Fprintf(&b, "| %s | %s |", about, formatStrategyName(res.strategy))
				for _, title := range titles {
					fmt.Fprintf(&b, " %s |", documentColumns[title](res.rows[0]))
				}
				b.WriteByte('\n')
				about = ""
			}
		}
		return b.String()
	}
}
