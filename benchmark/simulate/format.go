package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// writeResults writes the results to w in the given format: text or json.
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

// formatText returns the results as plain text: a table of each scenario with a sentence about the scenario, an
// explanation of the strategies, and notes. columns returns the columns of the engine's tables. terminal says whether
// to print the rows of this library in bold.
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

// MarshalJSON returns the row as a JSON object that has the metrics in their order. A metric without a figure is null.
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

// rowLabel returns the label of a row in tables: the name of the strategy. If the row is for a part of the scenario,
// the name of the part comes first.
func rowLabel(r row) string {
	if _, part, ok := strings.Cut(r.Scenario, "/"); ok {
		return part + ": " + r.Strategy
	}
	return r.Strategy
}

// formatTextTable returns the table of one scenario's results as plain text, with the given columns. terminal says
// whether the rows of this library are bold.
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

// A frameLine is a line of a table with a frame of line-drawing characters. A frameLine without cells is a horizontal
// rule.
type frameLine struct {
	cells []string
	bold  bool
}

// formatFramedTable returns a table with a frame of line-drawing characters. The first column is aligned left, and all
// others are aligned right. All lines have as many cells as the first line.
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

// formatMarkdownTable returns rows as a Markdown table with all columns of an engine.
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
