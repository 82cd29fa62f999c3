package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// A textTable is a table of results that can be formatted as aligned text or as Markdown. The first column names the rows.
type textTable struct {
	titles []string
	rows   [][]string // cells; nil: a rule between two groups of rows
}

// newTextTable returns a table of results, with a rule between the parts of a scenario. It leaves out columns for which
// the first row has no value, and the column errors if no row has errors.
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

// formatAligned returns the table with columns of equal width, all aligned right, and a blank line for each rule.
func (t textTable) formatAligned() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, cells := range slices.Concat([][]string{t.titles, nil}, t.rows) {
		if cells == nil {
			cells = make([]string, len(t.titles)) // keeps the widths of the rows above
		}
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	_ = w.Flush() // to a Builder, which cannot fail
	return b.String()
}

// formatMarkdown returns the table in Markdown, without rules between groups of rows. The first column and columns without
// a title are aligned left.
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
