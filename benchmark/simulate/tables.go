package main

import (
	"fmt"
	"slices"
	"strings"
)

// A documentTable is a table of measurements in the documentation, which the flag -readme replaces by new measurements.
// In the document, it stands between the comments <!-- table:NAME --> and <!-- /table -->. The figures come from a run
// of simulate, from Go benchmarks, or from a command that prints the table.
type documentTable struct {
	name         string
	args         string // of this command; tables with the same arguments share one run
	citedCommand string // the command below the table; empty: this command with args
	basis        string // explanation of the figures; empty: the explanation of ±
	render       func(engineResults) string
	picture      string // file of the picture that is drawn from the same run, relative to the document; empty: none

	benchmark   string // arguments of go test, which runs several times
	renderCosts func(benchmarkResults) string

	command string // arguments of the command go that prints the table and its origin
}

// referenceArgs are the arguments of the run that README's table and picture show, and the table beside the peers.
const referenceArgs = "-engine http -requests 30000 -runs 3 -strategy none,hedgedhttp-10ms,failsafe-quantile,bhope,bhope-tuned,hedge,static-best-2"

var documentTables = []documentTable{{
	name: "headline", render: formatReadmeTable, picture: "docs/tail.svg",
	args: referenceArgs, citedCommand: "make readme",
}, {
	name: "reference", render: formatReferenceTable,
	args: referenceArgs,
}, {
	name: "dns", render: newTableRenderer("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -requests 2500 -runs 2 -strategy hedge,forwarder,unbound,named,pdns,kresd,sdns,hickory",
}, {
	name: "dns-tls", render: newTableRenderer("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -transport tls -requests 2500 -runs 2 -strategy forwarder,unbound,named,pdns,kresd,dnsdist",
}, {
	name: "dns-https", render: newTableRenderer("mean", "p50", "p95", "p99 ±", "σ", "failed", "extra queries"),
	args: "-engine dns -scenario loss2 -transport https -requests 2500 -runs 2 -strategy forwarder,dnsdist",
}, {
	name: "cached", render: formatCacheTable, basis: "medians of 3 runs",
	args: "-engine cached -scenario all -strategy forwarder,bare-go,unbound,named,pdns,kresd,dnsdist,sdns,hickory",
}, {
	name: "clients", render: formatConnectionTable, basis: "one run",
	args: "-engine cached -scenario udp,long -strategy forwarder,bare-go,unbound -runs 1",
}, {
	name: "faults", render: newTableRenderer("answered", "p50", "p99", "last answer", "queries per question"), basis: "one run",
	args: "-engine faults -scenario all",
}, {
	name: "recursor", render: newTableRenderer("p50", "p99 ±", "σ", "failed", "queries per name"),
	args: "-engine recursor -scenario broken -requests 2000 -strategy hedge,unbound,named,pdns,kresd,sdns,hickory",
}, {
	name: "signed", render: newTableRenderer("p50", "p95", "p99 ±", "p99.9 ±", "failed", "queries per name", "CPU µs"),
	args: "-engine recursor -scenario mixed,signed -strategy hedge,hedge-novalidate,unbound-validate,named-validate -requests 1000 -runs 3",
}, {
	name: "storage", render: newTableRenderer("p50", "p99", "p99.9", "extra requests %", "bytes sent twice %", "wins %"), basis: "one run, in fake time",
	args: "-engine storage -scenario storage",
}, {
	name: "endpoints", render: formatEndpointTable, basis: "one run, in fake time",
	args: "-engine endpoints -scenario all -strategy none,hedge,far,failover,hedge-endpoints",
}, {
	name: "cost", renderCosts: formatCostTable,
	benchmark: "-run ^$ -bench ^BenchmarkNoHedge$ ./benchmark",
}, {
	name: "weight", command: "run ./benchmark/weight",
}}

func documentTableNames() (names []string) {
	for _, t := range documentTables {
		names = append(names, t.name)
	}
	return names
}

// formatReadmeTable returns the table in README that compares hedging libraries, and a sentence that compares its rows.
func formatReadmeTable(f engineResults) string {
	s := f.scenarios[0]
	table := textTable{titles: []string{"the published benchmark of bhope/hedge", "p50 ms", "p99 ms", "p99.9 ms", "extra requests", "connections"}}
	names := make(map[string]string)
	for _, h := range titledStrategies() {
		names[h.name] = h.title
		table.addRow(append([]string{emphasizeLibrary(h.name, h.title)}, overviewCells(s.findResult(h.name).rows[0])...)...)
	}
	return table.formatMarkdown() + "\n" + s.compareWithPeers(names) + "\n"
}

// overviewCells returns the cells of row r in README's table and in the overview: p50, p99, p99.9, the extra requests,
// and the number of connections.
func overviewCells(r row) []string {
	connections := "–"
	if r.Conns != nil {
		connections = formatThousands(*r.Conns)
	}
	return []string{
		formatMillis(r.P50), formatMillis(r.P99) + formatErrorMargin(r.errorMargins.p99), formatMillis(r.P999) + formatErrorMargin(r.errorMargins.p999), formatPercent(r.Extra), connections,
	}
}

// formatReferenceTable returns the Markdown table of the reference scenario, the first one in f, with all columns. It
// has a row for each strategy, and none for parts of the scenario.
func formatReferenceTable(f engineResults) string {
	rows := slices.DeleteFunc(f.scenarios[0].tableRows(), func(r row) bool { return strings.Contains(r.Scenario, "/") })
	table := newTextTable(rows, allColumns(f.options.engine.spec()))
	for _, cells := range table.rows {
		cells[0] = emphasizeLibrary(cells[0], cells[0])
	}
	return table.formatMarkdown()
}

// formatCacheTable returns the Markdown table of DNS servers that answer from their caches: a row for each server. Its
// cells are the processor time of a query in each scenario, and the memory of a connection.
func formatCacheTable(f engineResults) string {
	table := textTable{titles: []string{"CPU µs"}}
	var names []string
	for _, s := range f.scenarios {
		table.titles = append(table.titles, strings.TrimPrefix(s.scenario.description, "DNS: "))
		names = append(names, s.strategies()...)
	}
	table.titles = append(table.titles, "kB per connection")
	for _, name := range sortStrategyNames(names) {
		cells, memory := []string{emphasizeLibrary(name, name)}, "–"
		for _, s := range f.scenarios {
			cell := "–"
			for _, r := range s.findResult(name).rows {
				cell = fmt.Sprintf("%.1f", *r.CPU)
				if each := r.engineFigures["kb_per_connection"]; each != nil {
					memory = fmt.Sprintf("%.1f", *each)
				}
			}
			cells = append(cells, cell)
		}
		table.addRow(append(cells, memory)...)
	}
	return table.formatMarkdown()
}

// formatConnectionTable returns the Markdown table of DNS servers with many connections: a row for each scenario. Four
// cells for each server have the query rate, its share of the rate over UDP, the processor time, and the memory
// of a connection with that of the kernel.
func formatConnectionTable(f engineResults) string {
	table := textTable{titles: []string{""}}
	for _, udp := range f.scenarios[0].results {
		table.titles = append(table.titles, emphasizeLibrary(udp.strategy, udp.strategy)+": queries/s", "of UDP's", "CPU µs", "kB")
	}
	for _, s := range f.scenarios {
		cells := []string{strings.TrimSuffix(strings.TrimPrefix(s.scenario.description, "DNS: over "), " connections")}
		for _, udp := range f.scenarios[0].results {
			rows := s.findResult(udp.strategy).rows
			if len(rows) == 0 || rows[0].Errors > rows[0].Requests/100 {
				cells = append(cells, "–", "–", "–", "–")
				continue
			}
			r := rows[0]
			rate, memory := *r.engineFigures["queries_per_second"], "–"
			if kB, kernel := r.engineFigures["kb_per_connection"], r.engineFigures["kernel_kb_per_connection"]; kB != nil && kernel != nil {
				memory = fmt.Sprintf("%.1f", *kB+*kernel)
			}
			share := rate / *udp.rows[0].engineFigures["queries_per_second"]
			cells = append(cells, fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.2f", share), fmt.Sprintf("%.1f", *r.CPU), memory)
		}
		table.addRow(cells...)
	}
	return table.formatMarkdown()
}

// emphasizeLibrary returns text for a Markdown table, in bold if the strategy is this library or its DNS forwarder.
func emphasizeLibrary(strategy, text string) string {
	if strategy == libraryStrategy || strategy == "forwarder" {
		return "**" + text + "**"
	}
	return text
}

// formatEndpointTable returns the Markdown table of clients with several endpoints: a row for each scenario. Its cells are
// the 99th percentiles of the strategies, and the extra requests and errors of hedge.WithEndpoints.
func formatEndpointTable(f engineResults) string {
	table := textTable{titles: slices.Concat([]string{"p99 in ms"}, f.scenarios[0].strategies(), []string{"extra requests %", "errors"})}
	for _, s := range f.scenarios {
		cells := []string{s.scenario.name}
		for _, r := range s.rows() {
			cells = append(cells, formatMillis(r.P99))
		}
		with := s.findResult(endpointsStrategy).rows[0]
		table.addRow(append(cells, fmt.Sprintf("%.1f", with.Extra), fmt.Sprint(with.Errors))...)
	}
	return table.formatMarkdown()
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
	"bytes sent twice %":   func(r row) string { return fmt.Sprintf("%.2f", *r.engineFigures[sentTwiceMetric]) },
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

// newTableRenderer returns a function for documentTable.render, which formats results as a Markdown table with a row
// for each strategy in each scenario. titles are the titles of its columns, keys of documentColumns.
func newTableRenderer(titles ...string) func(engineResults) string {
	return func(f engineResults) string {
		table := textTable{titles: []string{"ms", ""}}
		for _, title := range titles {
			table.titles = append(table.titles, strings.TrimSuffix(title, " ±"))
		}
		for _, s := range f.scenarios {
			about := s.scenario.name
			if text, ok := strings.CutPrefix(s.scenario.description, "DNS: "); ok {
				about = text
			}
			for _, res := range s.results {
				cells := []string{about, emphasizeLibrary(res.strategy, res.strategy)}
				for _, title := range titles {
					cells = append(cells, documentColumns[title](res.rows[0]))
				}
				table.addRow(cells...)
				about = ""
			}
		}
		return table.formatMarkdown()
	}
}
