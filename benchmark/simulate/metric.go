package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// A metric is a figure of a row. Formats and medians are loops over metrics: a new one is a field of row and a line below.
type metric struct {
	name  string         // in the machine-readable formats: a contract, as is the order
	field func(*row) any // points to it: a *string, *uint64, *int or *float64; nil: there is nothing

	// Its column in tables for people.
	title  string                  // empty: it has none
	place  int                     // among the columns
	say    func(*row) string       // nil: as its type and format say
	format string                  // of fmt; empty: milliseconds
	spread func(*spreads) *float64 // what stands behind ±; nil: nothing
	ranged bool                    // of several runs, spread is half of their range
	own    bool                    // of a single engine
	extra  bool                    // only engines that name the title have the column
}

var metrics = []metric{
	{name: "engine", field: func(r *row) any { return &r.Engine }},
	{name: "scenario", field: func(r *row) any { return &r.Scenario }},
	{name: "strategy", field: func(r *row) any { return &r.Strategy }},
	{name: "seed", field: func(r *row) any { return &r.Seed }},
	{name: "requests", field: func(r *row) any { return &r.Requests }},
	{name: "errors", field: func(r *row) any { return &r.Errors }, title: "errors", place: 12},
	{name: "p50_ms", field: func(r *row) any { return &r.P50 }, title: "p50", place: 1, spread: func(s *spreads) *float64 { return &s.p50 }},
	{name: "p90_ms", field: func(r *row) any { return &r.P90 }, title: "p90", place: 2},
	{name: "p95_ms", field: func(r *row) any { return &r.P95 }, title: "p95", place: 3, spread: func(s *spreads) *float64 { return &s.p95 }},
	{name: "p99_ms", field: func(r *row) any { return &r.P99 }, title: "p99", place: 4, spread: func(s *spreads) *float64 { return &s.p99 }, ranged: true},
	{name: "p999_ms", field: func(r *row) any { return &r.P999 }, title: "p99.9", place: 5, spread: func(s *spreads) *float64 { return &s.p999 }, ranged: true},
	{name: "mean_ms", field: func(r *row) any { return &r.Mean }, title: "mean", place: 6, spread: func(s *spreads) *float64 { return &s.mean }},
	{name: "max_ms", field: func(r *row) any { return &r.Max }, title: "max", place: 8},
	{name: "stddev_ms", field: func(r *row) any { return &r.Stddev }, title: "σ", place: 7, extra: true, spread: func(s *spreads) *float64 { return &s.stddev }},
	{name: "extra_pct", field: func(r *row) any { return &r.Extra }, title: "extra %", place: 9, format: "%.1f"},
	{name: "hedges", field: func(r *row) any { return &r.Hedges }},
	{name: "wins", field: func(r *row) any { return &r.Wins }, title: "wins %", place: 10, say: func(r *row) string {
		return fmt.Sprintf("%.1f", 100*float64(r.Wins)/float64(max(r.Requests, 1)))
	}},
	{name: "denied", field: func(r *row) any { return &r.Denied }},
	{name: "conns_opened", field: func(r *row) any { return r.Conns }, title: "conns", place: 13},
	{name: "cpu_us_per_request", field: func(r *row) any { return r.CPU }, title: "CPU µs", place: 14, format: "%.0f"},
	{name: "sent_per_request", field: func(r *row) any { return r.Sent }, title: "sent", place: 11, format: "%.2f"},
}

// registerColumns adds columns of single engines, after those of all engines and in the order of their places.
func registerColumns(own ...metric) {
	metrics = append(metrics, own...)
	slices.SortStableFunc(metrics, func(a, b metric) int { return cmp.Compare(a.ownPlace(), b.ownPlace()) })
}

// ownMetric is a figure of a single engine.
func ownMetric(name, title string, place int, format string) metric {
	return metric{name: name, field: func(r *row) any { return r.own[name] }, title: title, place: place, format: format, own: true}
}

// ownPlace is the place of a single engine's column, and else 0.
func (m metric) ownPlace() int {
	if m.own {
		return m.place
	}
	return 0
}

// text is the metric in a table for people; empty: there is nothing to say.
func (m metric) text(r *row) string {
	if m.say != nil {
		return m.say(r)
	}
	switch p := m.field(r).(type) {
	case *int:
		if p != nil {
			return strconv.Itoa(*p)
		}
	case *float64:
		switch {
		case p == nil:
		case m.format != "":
			return fmt.Sprintf(m.format, *p)
		case m.spread != nil:
			return figure(*p) + spread(*m.spread(&r.spread))
		default:
			return figure(*p)
		}
	}
	return ""
}

// A sheet is a table for people: the titles of the columns that say something, and the cells of each row below them.
type sheet struct {
	titles []string
	cells  [][]string
}

// newSheet shows rows, latencies in milliseconds.
func newSheet(rows []row) sheet {
	s := sheet{cells: make([][]string, len(rows))}
	if len(rows) == 0 {
		return s
	}
	engine := profileOf(rows[0].Engine)
	columns := slices.DeleteFunc(slices.Clone(metrics), func(m metric) bool {
		return m.title == "" || slices.Contains(engine.hidden, m.title) || m.extra && !slices.Contains(engine.extraTitles, m.title)
	})
	slices.SortFunc(columns, func(a, b metric) int { return cmp.Compare(a.place, b.place) })
	for _, m := range columns {
		none := m.title == "errors" && !slices.ContainsFunc(rows, func(r row) bool { return r.Errors > 0 })
		if none || m.text(&rows[0]) == "" {
			continue
		}
		s.titles = append(s.titles, m.title)
		for i := range rows {
			s.cells[i] = append(s.cells[i], m.text(&rows[i]))
		}
	}
	return s
}

// median joins the results of several runs in the first one: each figure becomes the median of theirs
// (the lower one, of an even number), and its spread half of their range. The
// curves are the first run's, and counts are added. A single run stays as it is.
func median(runs []result) result {
	joined := runs[0]
	for _, run := range runs[1:] {
		for name, n := range run.counts {
			joined.counts[name] += n
		}
	}
	for i := range joined.rows {
		r := &joined.rows[i]
		var ranges spreads
		for _, m := range metrics {
			half := 0.0
			switch m.field(r).(type) {
			case *int:
				half = middle[int](runs, i, m)
			case *float64:
				half = middle[float64](runs, i, m)
			}
			if m.ranged {
				*m.spread(&ranges) = half
			}
		}
		if len(runs) > 1 {
			r.spread = ranges
		}
		if r.sample != nil {
			var all []float64
			for _, run := range runs {
				all = append(all, run.rows[i].sample...)
			}
			slices.Sort(all)
			r.spread = bootstrap(all)
		}
	}
	return joined
}

// middle sets a metric of the i-th row of the first run to its median, and returns half of its range.
func middle[T int | float64](runs []result, i int, m metric) (half float64) {
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
