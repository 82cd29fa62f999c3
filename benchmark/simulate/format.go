package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

func (f engineResults) writeResults(w io.Writer, format string) error {
	if format == "text" {
		_, err := io.WriteString(w, f.formatText(mainColumns, isTerminal(w)))
		return err
	}
	rows := f.rows()
	if rows == nil {
		rows = []row{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(rows)
}

// formatText returns the results as plain text with the columns that the function columns returns. On a terminal, the
// rows of this library are bold.
func (f engineResults) formatText(columns func(engineSpec) []metric, terminal bool) string {
	if len(f.scenarios) == 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "%s: %s; %s\n%s\n", s.scenario.name, s.scenario.description, s.describeRequests(), formatTextTable(s, columns(f.options.engine.spec()), terminal))
		if summary := s.compareWithPeers(nil); summary != "" {
			b.WriteString(summary + "\n")
		}
		b.WriteByte('\n')
	}
	width := 0
	for _, s := range collectStrategies(f) {
		width = max(width, len(s.name))
	}
	for _, s := range collectStrategies(f) {
		fmt.Fprintf(&b, "%-*s  %s\n", width, s.name, s.fullDescription())
	}
	b.WriteString("\n" + strings.Join(f.tableNotes(), "\n") + "\n")
	return b.String()
}

// MarshalJSON returns an object with all metrics in their order. A metric without a figure is null.
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

// rowLabel returns the label of a row in tables: the part of the scenario, if any, and the strategy.
func rowLabel(r row) string {
	if _, part, ok := strings.Cut(r.Scenario, "/"); ok {
		return part + ": " + r.Strategy
	}
	return r.Strategy
}

// formatTextTable returns the table of one scenario as plain text. On a terminal, the rows of this library are bold.
func formatTextTable(f scenarioResults, columns []metric, terminal bool) string {
	rows := f.tableRows()
	table := newTextTable(rows, columns)
	lines := []frameLine{{cells: append([]string{"ms"}, table.titles...)}, {}}
	for i, r := range rows {
		if i > 0 && rows[i-1].Scenario != r.Scenario {
			lines = append(lines, frameLine{})
		}
		lines = append(lines, frameLine{cells: append([]string{rowLabel(r)}, table.cells[i]...), bold: terminal && r.Strategy == libraryStrategy})
	}
	return formatFramedTable(lines)
}

// A frameLine is a line of a table with a frame. A frameLine without cells is a horizontal rule.
type frameLine struct {
	cells []string
	bold  bool
}

// formatFramedTable returns a table with a frame. The first column is aligned left, and all others right.
func formatFramedTable(lines []frameLine) string {
	width := make([]int, len(lines[0].cells))
	for _, l := range lines {
		for i, c := range l.cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	writeRule := func(left, cross, right string) {
		for i, n := range width {
			b.WriteString(left + strings.Repeat("─", n+2))
			left = cross
			if i == len(width)-1 {
				b.WriteString(right)
			}
		}
	}
	writeRule("╭", "┬", "╮")
	for _, l := range lines {
		b.WriteByte('\n')
		if l.cells == nil {
			writeRule("├", "┼", "┤")
			continue
		}
		b.WriteString("│")
		for i, c := range l.cells {
			padding := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			text := padding + c
			if i == 0 {
				text = c + padding
			}
			if l.bold {
				text = "\x1b[1m" + text + "\x1b[0m"
			}
			b.WriteString(" " + text + " │")
		}
	}
	b.WriteByte('\n')
	writeRule("╰", "┴", "╯")
	return b.String()
}

func formatMarkdownTable(rows []row, engine engineSpec) string {
	table := newTextTable(rows, allColumns(engine))
	var b strings.Builder
	writeLine := func(first string, cells []string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, c := range cells {
			fmt.Fprintf(&b, " %s |", c)
		}
		b.WriteByte('\n')
	}
	writeLine("ms", table.titles)
	b.WriteString("|---|" + strings.Repeat("--:|", len(table.titles)) + "\n")
	for i, r := range rows {
		name := rowLabel(r)
		if r.Strategy == libraryStrategy {
			name = "**" + name + "**"
		}
		writeLine(name, table.cells[i])
	}
	return b.String()
}
