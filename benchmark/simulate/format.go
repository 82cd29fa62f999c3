package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// print writes the rows in the given format.
func (f findings) print(w io.Writer, format string) error {
	switch format {
	case "json":
		rows := f.rows()
		if rows == nil {
			rows = []row{}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(rows)
	case "csv":
		return f.csv(w)
	case "md":
		for _, s := range f.scenarios {
			if _, err := fmt.Fprintf(w, "### %s\n\n%s\n\n%s\n", s.scenario.name, sentence(s.scenario.about), markdown(s.rows())); err != nil {
				return err
			}
		}
		return f.footer(w)
	default:
		for _, s := range f.scenarios {
			if _, err := fmt.Fprintf(w, "%s: %s\n%s\n\n", s.scenario.name, s.scenario.about, terminalTable(s)); err != nil {
				return err
			}
		}
		return f.footer(w)
	}
}

// footer writes the notes, if there are tables above.
func (f findings) footer(w io.Writer) error {
	if len(f.scenarios) == 0 {
		return nil
	}
	for _, note := range f.notes() {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}

func (f findings) csv(w io.Writer) error {
	out := csv.NewWriter(w)
	var record []string
	for _, c := range columns {
		record = append(record, c.name)
	}
	_ = out.Write(record) // Flush keeps the error
	for _, r := range f.rows() {
		record = record[:0]
		for _, c := range columns {
			v := c.value(&r)
			if v == nil {
				v = ""
			}
			record = append(record, fmt.Sprint(v))
		}
		_ = out.Write(record)
	}
	out.Flush()
	return out.Error()
}

// shown are the columns of the tables for people, after the strategy's name.
var shown = []struct {
	title string
	value func(*row) string
}{
	{"p50", func(r *row) string { return figure(r.P50) + spread(r.spread.p50) }},
	{"p90", func(r *row) string { return figure(r.P90) }},
	{"p95", func(r *row) string { return figure(r.P95) + spread(r.spread.p95) }},
	{"p99", func(r *row) string { return figure(r.P99) + spread(r.spread.p99) }},
	{"p99.9", func(r *row) string { return figure(r.P999) + spread(r.spread.p999) }},
	{"mean", func(r *row) string { return figure(r.Mean) + spread(r.spread.mean) }},
	{"σ", func(r *row) string {
		if r.Engine != "dns" {
			return ""
		}
		return figure(r.Stddev) + spread(r.spread.stddev)
	}},
	{"max", func(r *row) string { return figure(r.Max) }},
	{"extra %", func(r *row) string {
		if r.Sent != nil {
			return ""
		}
		return fmt.Sprintf("%.1f", r.Extra)
	}},
	{"wins %", func(r *row) string {
		if r.Sent != nil {
			return ""
		}
		return fmt.Sprintf("%.1f", 100*float64(r.Wins)/float64(max(r.Requests, 1)))
	}},
	{"sent", func(r *row) string {
		if r.Sent == nil {
			return ""
		}
		return fmt.Sprintf("%.2f", *r.Sent)
	}},
	{"errors", func(r *row) string { return strconv.Itoa(r.Errors) }},
	{"conns", func(r *row) string {
		if r.Conns == nil {
			return ""
		}
		return strconv.Itoa(*r.Conns)
	}},
	{"CPU µs", func(r *row) string {
		if r.CPU == nil {
			return ""
		}
		return fmt.Sprintf("%.0f", *r.CPU)
	}},
}

// figure shows milliseconds with three digits, and whole ones from a hundred on.
func figure(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

func spread(x float64) string {
	if x == 0 {
		return ""
	}
	return " ±" + figure(x)
}

// used returns which of the shown columns say something.
func used(rows []row) []int {
	var all []int
	for i, c := range shown {
		if c.title == "errors" {
			errors := 0
			for _, r := range rows {
				errors += r.Errors
			}
			if errors == 0 {
				continue
			}
		}
		if len(rows) > 0 && c.value(&rows[0]) != "" {
			all = append(all, i)
		}
	}
	return all
}

// label names a row: by its strategy, and by its part if it is one.
func label(r row) string {
	if _, part, ok := strings.Cut(r.Scenario, "/"); ok {
		return part + ": " + r.Strategy
	}
	return r.Strategy
}

// terminalTable draws a scenario's rows, latencies in milliseconds.
func terminalTable(f finding) string {
	rows := f.rows()
	use := used(rows)
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Format.Header = text.FormatDefault
	head := table.Row{"ms"}
	config := []table.ColumnConfig{{Number: 1, Align: text.AlignLeft}}
	for n, i := range use {
		head = append(head, shown[i].title)
		config = append(config, table.ColumnConfig{Number: n + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(config)
	for n, r := range rows {
		if n > 0 && rows[n-1].Scenario != r.Scenario {
			t.AppendSeparator()
		}
		cells := table.Row{label(r)}
		for _, i := range use {
			cells = append(cells, shown[i].value(&r))
		}
		t.AppendRow(cells)
	}
	return t.Render()
}

// markdown writes rows as a table, latencies in milliseconds.
func markdown(rows []row) string {
	use := used(rows)
	var b strings.Builder
	b.WriteString("| ms |")
	for _, i := range use {
		b.WriteString(" " + shown[i].title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(use)) + "\n")
	for _, r := range rows {
		name := label(r)
		if strategyOf(r.Strategy).name == ours {
			name = "**" + name + "**"
		}
		b.WriteString("| " + name + " |")
		for _, i := range use {
			b.WriteString(" " + shown[i].value(&r) + " |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// sentence gives a text a capital and a full stop.
func sentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:] + "."
}
