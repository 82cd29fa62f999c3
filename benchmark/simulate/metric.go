package main

import (
	"cmp"
	"fmt"
	"slices"
)

// A metric is a figure in the results of a strategy, for example the 99th percentile or the number of hedges. It has
// the name for the JSON format, the field of row with the value, and the column in tables for people.
//
// The tables, the JSON format and joinRuns are loops over metrics. A new metric needs a field of row and a line in the list metrics.
type metric struct {
	name  string         // in the JSON format: a contract, as is the order
	field func(*row) any // a *string, *uint64, *int or *float64 into the row; nil if the row has no such figure

	// Its column in tables that people read.
	title            string                       // empty: no column
	position         int                          // among the columns
	cell             func(*row) string            // nil: the type and format determine the text
	format           string                       // of fmt; empty: milliseconds
	errorMargin      func(*errorMargins) *float64 // the value after ±; nil: none
	isRange          bool                         // over several runs, errorMargin is half of their range
	isDetail         bool                         // tables on a terminal lack the column
	isEngineSpecific bool                         // of a single engine
}

var metrics = []metric{
	{name: "engine", field: func(r *row) any { return &r.Engine }},
	{name: "scenario", field: func(r *row) any { return &r.Scenario }},
	{name: "strategy", field: func(r *row) any { return &r.Strategy }},
	{name: "seed", field: func(r *row) any { return &r.Seed }},
	{name: "requests", field: func(r *row) any { return &r.Requests }},
	{name: "errors", field: func(r *row) any { return &r.Errors }, title: "errors", position: 12},
	{name: "p50_ms", field: func(r *row) any { return &r.P50 }, title: "p50", position: 1},
	{name: "p90_ms", field: func(r *row) any { return &r.P90 }, title: "p90", position: 2, isDetail: true},
	{name: "p95_ms", field: func(r *row) any { return &r.P95 }, title: "p95", position: 3, isDetail: true},
	{name: "p99_ms", field: func(r *row) any { return &r.P99 }, title: "p99", position: 4, errorMargin: func(s *errorMargins) *float64 { return &s.p99 }, isRange: true},
	{name: "p999_ms", field: func(r *row) any { return &r.P999 }, title: "p99.9", position: 5, errorMargin: func(s *errorMargins) *float64 { return &s.p999 }, isRange: true},
	{name: "mean_ms", field: func(r *row) any { return &r.Mean }, title: "mean", position: 6, errorMargin: func(s *errorMargins) *float64 { return &s.mean }, isDetail: true},
	{name: "max_ms", field: func(r *row) any { return &r.Max }, title: "max", position: 8, isDetail: true},
	{name: "stddev_ms", field: func(r *row) any { return &r.Stddev }},
	{name: "extra_pct", field: func(r *row) any { return &r.Extra }, title: "extra requests", position: 9, cell: func(r *row) string { return formatPercent(r.Extra) }},
	{name: "hedges", field: func(r *row) any { return &r.Hedges }},
	{name: "wins", field: func(r *row) any { return &r.Wins }, title: "wins", position: 10, isDetail: true, cell: func(r *row) string {
		return formatPercent(100 * float64(r.Wins) / float64(max(r.Requests, 1)))
	}},
	{name: "denied", field: func(r *row) any { return &r.Denied }},
	{name: "conns_opened", field: func(r *row) any { return r.Conns }, title: "connections", position: 13},
	{name: "cpu_us_per_request", field: func(r *row) any { return r.CPU }, title: "CPU µs", position: 14, format: "%.0f"},
	{name: "sent_per_request", field: func(r *row) any { return r.Sent }, title: "sent", position: 11, format: "%.2f"},
}

// registerMetrics adds metrics of a single engine. In JSON they follow all other metrics, in the order of the columns.
func registerMetrics(own ...metric) {
	metrics = append(metrics, own...)
	slices.SortStableFunc(metrics, func(a, b metric) int { return cmp.Compare(a.engineColumnPosition(), b.engineColumnPosition()) })
}

// newEngineMetric returns a metric that only one engine measures. name is the name in the JSON format and the key in
// row.engineFigures. title and position belong to the column. format is a verb of package fmt; empty means milliseconds.
func newEngineMetric(name, title string, position int, format string) metric {
	return metric{name: name, field: func(r *row) any { return r.engineFigures[name] }, title: title, position: position, format: format, isEngineSpecific: true}
}

// engineColumnPosition returns the position of the metric's column if only one engine has the metric, or else 0.
func (m metric) engineColumnPosition() int {
	if m.isEngineSpecific {
		return m.position
	}
	return 0
}

// formatCell returns the value of the metric in row r, with ± and the error margin if there is one, or an empty text.
func (m metric) formatCell(r *row) string {
	if m.cell != nil {
		return m.cell(r)
	}
	switch p := m.field(r).(type) {
	case *int:
		if p != nil {
			return formatThousands(*p)
		}
	case *float64:
		switch {
		case p == nil:
		case m.format != "":
			return fmt.Sprintf(m.format, *p)
		case m.errorMargin != nil:
			return formatMillis(*p) + formatErrorMargin(*m.errorMargin(&r.errorMargins))
		default:
			return formatMillis(*p)
		}
	}
	return ""
}

// allColumns returns the metrics that are columns in the tables of an engine, from left to right.
func allColumns(engine engineSpec) []metric {
	columns := slices.DeleteFunc(slices.Clone(metrics), func(m metric) bool {
		return m.title == "" || slices.Contains(engine.hidden, m.title)
	})
	slices.SortFunc(columns, func(a, b metric) int { return cmp.Compare(a.position, b.position) })
	return columns
}

// terminalColumns returns the columns of an engine's tables on a terminal, without those that only reports have.
func terminalColumns(engine engineSpec) []metric {
	return slices.DeleteFunc(allColumns(engine), func(m metric) bool { return m.isDetail })
}

// joinRuns joins the results of one strategy in several runs of a scenario. Each figure and each point of the latency
// curve becomes the median of the runs, or the lower middle value for an even number of runs. The error margin of a
// figure becomes half the difference between its largest and its least value. All else is from the first run.
func joinRuns(runs []strategyResult) strategyResult {
	joined := runs[0]
	latencies := [][]point{joined.curve}
	for _, run := range runs[1:] {
		latencies = append(latencies, run.curve)
	}
	joined.curve = medianCurve(latencies)
	for i := range joined.rows {
		r := &joined.rows[i]
		var ranges errorMargins
		for _, m := range metrics {
			half := 0.0
			switch m.field(r).(type) {
			case *int:
				half = setMedian[int](runs, i, m)
			case *float64:
				half = setMedian[float64](runs, i, m)
			}
			if m.isRange {
				*m.errorMargin(&ranges) = half
			}
		}
		if len(runs) > 1 {
			r.errorMargins = ranges
		}
	}
	return joined
}

// setMedian sets metric m in the i-th row of runs[0] to its median over all runs, and returns half of the range.
func setMedian[T int | float64](runs []strategyResult, i int, m metric) (half float64) {
	var all []T
	for _, run := range runs {
		if p := m.field(&run.rows[i]).(*T); p != nil {
			all = append(all, *p)
		}
	}
	n := len(all)
	if n == 0 {
		return 0
	}
	slices.Sort(all)
	*m.field(&runs[0].rows[i]).(*T) = all[(n-1)/2]
	return float64(all[n-1]-all[0]) / 2
}
