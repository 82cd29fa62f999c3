package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A textTable is a table for people. The first column has the names of the rows.
type textTable struct {
	titles []string
	rows   [][]string // cells; nil: a horizontal rule
}

// newTextTable returns a table of results, with a rule between the parts of a scenario. It leaves out columns for which
// the first row has no value, and errors if there are none.
func newTextTable(rows []row, columns []metric) textTable {
	table := textTable{titles: []string{"ms"}}
	columns = slices.DeleteFunc(columns, func(m metric) bool {
		hasNoErrors := m.title == "errors" && !slices.ContainsFunc(rows, func(r row) bool { return r.Errors > 0 })
		return len(rows) == 0 || hasNoErrors || m.formatCell(&rows[0]) == ""
	})
	for _, m := range columns {
		table.titles = append(table.titles, m.title)
	}
	for i := range rows {
		if i > 0 && rows[i-1].Scenario != rows[i].Scenario {
			table.addRow()
		}
		cells := []string{rows[i].Strategy}
		if _, part, ok := strings.Cut(rows[i].Scenario, "/"); ok {
			cells[0] = part + ": " + cells[0]
		}
		for _, m := range columns {
			cells = append(cells, m.formatCell(&rows[i]))
		}
		table.addRow(cells...)
	}
	return table
}

func (t *textTable) addRow(cells ...string) { t.rows = append(t.rows, cells) }

// formatFramed returns the table with a frame. The first column is aligned left, and all others right.
func (t textTable) formatFramed() string {
	lines := slices.Concat([][]string{t.titles, nil}, t.rows)
	width := make([]int, len(t.titles))
	for _, cells := range lines {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	rule := func(left, cross, right string) string {
		var parts []string
		for _, n := range width {
			parts = append(parts, strings.Repeat("─", n+2))
		}
		return left + strings.Join(parts, cross) + right
	}
	var b strings.Builder
	b.WriteString(rule("╭", "┬", "╮") + "\n")
	for _, cells := range lines {
		if cells == nil {
			b.WriteString(rule("├", "┼", "┤") + "\n")
			continue
		}
		for i, c := range cells {
			padding := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 {
				fmt.Fprintf(&b, "│ %s%s │", c, padding)
			} else {
				fmt.Fprintf(&b, " %s%s │", padding, c)
			}
		}
		b.WriteByte('\n')
	}
	return b.String() + rule("╰", "┴", "╯")
}

// formatMarkdown returns the table in Markdown, without rules. Columns without a title are aligned left, and so is the
// first one.
func (t textTable) formatMarkdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|", strings.Join(t.titles, " | "))
	for i, title := range t.titles {
		if i == 0 || title == "" {
			b.WriteString("---|")
		} else {
			b.WriteString("--:|")
		}
	}
	b.WriteByte('\n')
	for _, cells := range t.rows {
		if cells != nil {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		}
	}
	return b.String()
}
