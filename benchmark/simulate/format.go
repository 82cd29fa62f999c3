package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
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
			if _, err := fmt.Fprintf(w, "### %s\n\n%s %s\n\n%s\n", s.scenario.name, sentence(s.scenario.about), sentence(s.requests()), markdown(s.shown())); err != nil {
				return err
			}
		}
		return f.footer(w)
	default:
		for _, s := range f.scenarios {
			if _, err := fmt.Fprintf(w, "%s: %s; %s\n%s\n\n", s.scenario.name, s.scenario.about, s.requests(), terminalTable(s)); err != nil {
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

// csv leaves cells empty where there is nothing.
func (f findings) csv(w io.Writer) error {
	out := csv.NewWriter(w)
	record := make([]string, len(metrics))
	for i, m := range metrics {
		record[i] = m.name
	}
	_ = out.Write(record) // Flush keeps the error
	for _, r := range f.rows() {
		for i, m := range metrics {
			record[i] = ""
			if v := reflect.ValueOf(m.field(&r)); !v.IsNil() {
				record[i] = fmt.Sprint(v.Elem())
			}
		}
		_ = out.Write(record)
	}
	out.Flush()
	return out.Error()
}

// MarshalJSON has the metrics in their order, null where there is nothing.
func (r row) MarshalJSON() ([]byte, error) {
	b := []byte("{")
	for i, m := range metrics {
		v, err := json.Marshal(m.field(&r))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:%s", m.name, v)
	}
	return append(b, '}'), nil
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
	rows := f.shown()
	s := newSheet(rows)
	lines := [][]string{append([]string{"ms"}, s.titles...), nil}
	for n, r := range rows {
		if n > 0 && rows[n-1].Scenario != r.Scenario {
			lines = append(lines, nil)
		}
		lines = append(lines, append([]string{label(r)}, s.cells[n]...))
	}
	return box(lines)
}

// box draws lines of cells in a frame, the first column to the left and the others to the right. A nil line is a rule.
func box(lines [][]string) string {
	width := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	rule := func(left, cross, right string) {
		for i, n := range width {
			b.WriteString(left + strings.Repeat("─", n+2))
			left = cross
			if i == len(width)-1 {
				b.WriteString(right)
			}
		}
	}
	rule("╭", "┬", "╮")
	for _, cells := range lines {
		b.WriteByte('\n')
		if cells == nil {
			rule("├", "┼", "┤")
			continue
		}
		for i, c := range cells {
			if i == 0 {
				fmt.Fprintf(&b, "│ %-*s │", width[i], c)
			} else {
				fmt.Fprintf(&b, " %*s │", width[i], c)
			}
		}
	}
	b.WriteByte('\n')
	rule("╰", "┴", "╯")
	return b.String()
}

// markdown writes rows as a table, latencies in milliseconds.
func markdown(rows []row) string {
	s := newSheet(rows)
	var b strings.Builder
	line := func(first string, cells []string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, c := range cells {
			fmt.Fprintf(&b, " %s |", c)
		}
		b.WriteByte('\n')
	}
	line("ms", s.titles)
	b.WriteString("|---|" + strings.Repeat("--:|", len(s.titles)) + "\n")
	for i, r := range rows {
		name := label(r)
		if r.Strategy == ours {
			name = "**" + name + "**"
		}
		line(name, s.cells[i])
	}
	return b.String()
}
